"""A run while it lasts: the same events that the journal gets, as a live view or as plain lines.

The views start no thread and read no clock: whoever runs the loop calls ``take`` with each event and ``tick``
now and then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from disttest import github
from disttest.model import TestCase, TestResult, WorldShape
from disttest.reports import digest
from disttest.reports.digest import FailureGroup
from disttest.reports.location import Repository
from disttest.reports.terminal import MARKS, STYLES, print_failure
from disttest.reports.text import count, duration, one_line
from disttest.results.events import (
    AnyEvent,
    CollectionFailed,
    Noted,
    RunStarted,
    TestCollected,
    TestFinished,
    TestStarted,
    WorldEnded,
    WorldStarted,
)
from disttest.results.fold import TestOutcome
from disttest.results.repeat import repeat_command

HEARTBEAT_S = 30.0
"""A log in CI is never silent for longer than this while tests run."""

REDRAW_S = 0.1
"""The live view is not drawn more often than this, however fast the events come."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A test that runs now."""

    test: TestCase
    started_at_s: float
    attempt: int
    world_id: str


@dataclass(kw_only=True)
class Progress:
    """What is known of a run so far; ``expected_s`` are the timings of earlier runs by node id."""

    expected_s: Mapping[str, float] = field(default_factory=dict)
    root: str = ""
    started: RunStarted | None = None
    started_at_s: float = 0.0
    now_s: float = 0.0
    tests: dict[str, TestCase] = field(default_factory=dict)
    attempts: dict[str, list[TestResult]] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    slots: dict[str, tuple[WorldShape, tuple[str, ...]]] = field(default_factory=dict)
    """World -> what it is and what it sits on."""
    not_collected: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STYLES, 0))
    """How many tests came to what so far, by the names of :class:`digest.Tally`."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Suite -> tests that have no result yet."""
    spent_s: float = 0.0
    """All finished attempts together."""
    left_known_s: float = 0.0
    """Expected seconds of the tests that have no result yet and are known from earlier."""
    left_unknown: int = 0
    """Tests that have no result yet and are not known."""

    def take(self, event: AnyEvent) -> None:
        """Learn from an event."""
        self.now_s = max(self.now_s, event.at_s)
        match event:
            case RunStarted():
                self.root = event.root
                self.started = event
                self.started_at_s = event.at_s
            case TestCollected(test=test):
                self._collected(test)
            case CollectionFailed():
                self.not_collected += 1
            case WorldStarted():
                self.slots[event.world_id] = (event.shape, event.slots)
            case WorldEnded():
                self.slots.pop(event.world_id, None)
            case TestStarted(nodeid=nodeid) if nodeid in self.tests:
                self.running[nodeid] = Running(
                    test=self.tests[nodeid],
                    started_at_s=event.at_s,
                    attempt=event.attempt,
                    world_id=event.world_id,
                )
            case TestFinished(result=result):
                self._finished(result)
            case _:
                pass

    def outcome(self, nodeid: str) -> TestOutcome | None:
        """Return what a test has come to so far; None if it is not known, or has no attempt behind it."""
        test, attempts = self.tests.get(nodeid), self.attempts.get(nodeid)
        return TestOutcome(test=test, attempts=tuple(attempts)) if test and attempts else None

    def _collected(self, test: TestCase) -> None:
        if test.nodeid in self.tests:
            return
        self.tests[test.nodeid] = test
        self.waiting[test.suite] += 1
        self._owe(test.nodeid, +1)

    def _owe(self, nodeid: str, sign: int) -> None:
        if nodeid in self.expected_s:
            self.left_known_s += sign * self.expected_s[nodeid]
        else:
            self.left_unknown += sign

    def _finished(self, result: TestResult) -> None:
        self.running.pop(result.nodeid, None)
        before = self.outcome(result.nodeid)
        self.attempts.setdefault(result.nodeid, []).append(result)
        self.spent_s += max(0.0, result.duration_s)
        after = self.outcome(result.nodeid)
        if after is None:
            return
        self.counts[digest.classify(after)] += 1
        if before is not None:
            self.counts[digest.classify(before)] -= 1
            return
        self.waiting[after.test.suite] -= 1
        self._owe(result.nodeid, -1)

    @property
    def done(self) -> int:
        """Number of tests that have a result."""
        return sum(self.counts.values())

    def left_s(self) -> float | None:
        """Return the estimated seconds to the end; None while there is nothing to go by."""
        elapsed_s = self.now_s - self.started_at_s
        if elapsed_s <= 0 or self.spent_s <= 0 or not self.done:
            return None
        # A test that nobody knows takes as long as those did that are done.
        work_s = self.left_known_s + self.left_unknown * self.spent_s / self.done
        work_s -= sum(self.now_s - running.started_at_s for running in self.running.values())
        # As many tests at once as there have been so far.
        return max(0.0, work_s) / max(1.0, self.spent_s / elapsed_s)


def status_line(progress: Progress) -> Text:
    """Return the counts, the time so far, and the time left."""
    line = Text(f"{progress.done:,}/{len(progress.tests):,}")
    counts = progress.counts
    for kind in ("failed", "infrastructure", "flaky", "skipped"):
        if counts[kind]:
            line.append(f" · {counts[kind]:,} {kind}", style=STYLES[kind])
    if progress.not_collected:
        line.append(f" · {progress.not_collected:,} not collected", style=STYLES["failed"])
    line.append(f" · {duration(progress.now_s - progress.started_at_s)}")
    left_s = progress.left_s()
    if left_s is not None and progress.done < len(progress.tests):
        line.append(f" · about {duration(max(1.0, left_s))} left", style="bright_black")
    return line


class View(Protocol):
    """Something that shows a run while it lasts."""

    def take(self, event: AnyEvent) -> None:
        """Show what an event says."""

    def tick(self, now_s: float) -> None:
        """Time has passed; ``now_s`` is on the clock of the events."""

    def close(self) -> None:
        """Leave the terminal in order."""


class LiveView:
    """For a terminal: failures scroll by as they come, and below stay the bar and the worlds that run now."""

    def __init__(self, console: Console, *, expected_s: Mapping[str, float] | None = None) -> None:
        self._progress = Progress(expected_s=expected_s or {})
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._drawn_at_s = 0.0
        self._live.start()

    def take(self, event: AnyEvent) -> None:
        """Show what an event says."""
        self._progress.take(event)
        match event:
            case TestFinished(result=result):
                self._finished(result)
            case CollectionFailed(nodeid=nodeid):
                self._console.print(Text(f"✗ {one_line(nodeid)} could not be collected", style="bold red"))
            case Noted(message=message):
                self._console.print(Text(one_line(message), style="bright_black"))
            case _:
                pass
        if event.at_s - self._drawn_at_s >= REDRAW_S:
            self._refresh()

    def tick(self, now_s: float) -> None:
        """Let the seconds of the running tests go on."""
        self._progress.now_s = max(self._progress.now_s, now_s)
        self._refresh()

    def close(self) -> None:
        """Remove the view; what scrolled by stays."""
        self._refresh()
        self._live.stop()

    def _finished(self, result: TestResult) -> None:
        outcome = self._progress.outcome(result.nodeid)
        if outcome is None or not result.outcome.is_bad:
            return
        style = STYLES[digest.classify(outcome)]
        self._console.print(Text(f"✗ {digest.finding(result)}", style=style))
        seconds = duration(result.duration_s)
        self._console.print(Text(f"  {one_line(result.nodeid)} · {seconds}", style="bright_black"))

    def _refresh(self) -> None:
        self._drawn_at_s = self._progress.now_s
        self._live.update(render_live(self._progress, height=self._console.height), refresh=True)


def render_live(progress: Progress, *, height: int) -> RenderableType:
    """Return the lower part of the live view: at most ``height`` lines less a few, whatever runs."""
    bar = Table.grid(expand=True)
    bar.add_row(ProgressBar(total=max(1, len(progress.tests)), completed=progress.done))
    running = sorted(progress.running.values(), key=lambda entry: entry.started_at_s)
    room = max(1, height - 5)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for entry in running[:room]:
        table.add_row(*_running_cells(entry, progress))
    lines: list[RenderableType] = [bar, status_line(progress), table]
    if len(running) > room:
        lines.append(Text(f"… and {count(len(running) - room, 'more test')} running", style="bright_black"))
    return Group(*lines)


def _running_cells(entry: Running, progress: Progress) -> tuple[Text, Text, Text]:
    _, slots = progress.slots.get(entry.world_id, (None, ()))
    name = one_line(entry.test.name, 200)
    if entry.attempt > 1:
        name += f" (attempt {entry.attempt})"
    seconds_s = progress.now_s - entry.started_at_s
    late = seconds_s > max(10.0, 3 * progress.expected_s.get(entry.test.nodeid, entry.test.timeout_s / 6))
    return Text(_short(slots)), Text(name), Text(duration(seconds_s), style="yellow" if late else "")


def _short(slots: tuple[str, ...]) -> str:
    """``gpu:0,1,2`` for three slots of one kind."""
    kinds: dict[str, list[str]] = {}
    for slot in slots:
        kind, _, number = slot.partition(":")
        kinds.setdefault(kind, []).append(number)
    return " ".join(
        f"{kind}:{','.join(numbers)}" if any(numbers) else kind for kind, numbers in kinds.items()
    )


class PlainView:
    """For logs: one block per test. On GitHub the tests that went well are folded away, suite by suite."""

    def __init__(
        self, console: Console, *, on_github: bool = False, expected_s: Mapping[str, float] | None = None
    ) -> None:
        self._progress = Progress(expected_s=expected_s or {})
        self._console = console
        self._on_github = on_github
        self._held: dict[str, list[Text]] = {}
        """Suite -> lines to be shown when the suite is complete."""
        self._spoke_at_s = 0.0

    def take(self, event: AnyEvent) -> None:
        """Show what an event says."""
        self._progress.take(event)
        match event:
            case RunStarted():
                self._spoke_at_s = event.at_s
            case TestFinished(result=result):
                self._finished(result)
            case CollectionFailed(nodeid=nodeid, message=message):
                last = one_line(message.strip().rpartition("\n")[2])
                self._say(Text(f"ERROR {one_line(nodeid)} could not be collected: {last}", style="bold red"))
            case Noted(message=message):
                self._say(Text(f"note: {one_line(message)}"))
            case _:
                pass

    def tick(self, now_s: float) -> None:
        """Say a word when nothing has been said for long."""
        self._progress.now_s = max(self._progress.now_s, now_s)
        if now_s - self._spoke_at_s >= HEARTBEAT_S and self._progress.running:
            oldest = min(self._progress.running.values(), key=lambda entry: entry.started_at_s)
            runs_s = duration(now_s - oldest.started_at_s)
            line = Text("… ").append_text(status_line(self._progress))
            self._say(line.append(f" · longest now: {one_line(oldest.test.nodeid)} ({runs_s})"))

    def close(self) -> None:
        """Say what is still held back."""
        for suite in tuple(self._held):
            self._release(suite)

    def _finished(self, result: TestResult) -> None:
        outcome = self._progress.outcome(result.nodeid)
        if outcome is None:
            return
        kind = digest.classify(outcome)
        line = Text(f"{MARKS[kind]} {one_line(result.nodeid)} {_word(outcome, kind)}", style=STYLES[kind])
        line.append(f" ({duration(result.duration_s)})", style="bright_black")
        if result.outcome.is_bad:
            self._say(line)
            started = self._progress.started
            repeat = repeat_command(outcome.test, started) if started else ""
            group = FailureGroup(message=digest.finding(result), tests=(outcome,), repeat=repeat)
            repository = Repository(root=self._progress.root)
            print_failure(self._console, group, repository, on_github=self._on_github)
        elif self._on_github:
            self._held.setdefault(outcome.test.suite, []).append(line)
        else:
            self._say(line)
        self._release_if_complete(outcome.test.suite)

    def _release_if_complete(self, suite: str) -> None:
        if suite in self._held and not self._progress.waiting[suite]:
            self._release(suite)

    def _release(self, suite: str) -> None:
        lines = self._held.pop(suite)
        self._say(Text(github.group(f"{one_line(suite)}: {count(len(lines), 'test')} went well")))
        for line in lines:
            self._say(line)
        self._say(Text(github.end_group()))

    def _say(self, line: Text) -> None:
        self._spoke_at_s = self._progress.now_s
        self._console.print(line, soft_wrap=True)


def _word(outcome: TestOutcome, kind: str) -> str:
    if kind == "flaky":
        return f"passed at attempt {outcome.final.attempt}"
    reason = one_line(outcome.final.message, 200)
    return f"{kind}: {reason}" if kind in ("skipped", "xfailed") and reason else kind


def make_view(
    console: Console, *, on_github: bool = False, expected_s: Mapping[str, float] | None = None
) -> View:
    """Return the view that suits the place: live on a terminal, lines elsewhere."""
    if console.is_terminal and not on_github:
        return LiveView(console, expected_s=expected_s)
    return PlainView(console, on_github=on_github, expected_s=expected_s)
