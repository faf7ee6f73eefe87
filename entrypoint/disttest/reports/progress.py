"""Progress of a run, and the line that describes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from rich.text import Text

from disttest.model import TestCase, TestResult, WorldShape
from disttest.reports import aggregates
from disttest.reports.failures import STYLES
from disttest.reports.text import duration, one_line
from disttest.results.events import (
    AnyEvent,
    CollectionFailed,
    RunStarted,
    TestCollected,
    TestFinished,
    TestStarted,
    WorldEnded,
    WorldStarted,
)
from disttest.results.fold import TestOutcome, add_attempt

Expect = Callable[[TestCase], float]
"""Returns the expected duration of a test in seconds, from the timings of earlier runs."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A running test."""

    test: TestCase
    started_at_s: float
    attempt: int
    world_id: str


@dataclass(frozen=True, kw_only=True)
class RunningWorld:
    """A living world, with or without a running test."""

    shape: WorldShape
    slots: tuple[str, ...]
    started_at_s: float


@dataclass(kw_only=True)
class Progress:
    """Progress of a run; without ``expect`` no durations of earlier runs are known."""

    expect: Expect | None = None
    expected_s: dict[str, float] = field(default_factory=dict)
    """Node id -> expected duration."""
    root: str = ""
    began: RunStarted | None = None
    """First event of the command, which has the user's request, with the root that the controller knows."""
    started_at_s: float = 0.0
    """Start of the tests, after collection."""
    now_s: float = 0.0
    tests: dict[str, TestCase] = field(default_factory=dict)
    attempts: dict[str, list[TestResult]] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    worlds: dict[str, RunningWorld] = field(default_factory=dict)
    """World id -> living world."""
    not_collected: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STYLES, 0))
    """Number of tests by kind, as in :class:`aggregates.Tally`."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Suite -> number of tests without a result."""
    spent_s: float = 0.0
    """Duration of all finished attempts together."""
    left_known_s: float = 0.0
    """Expected duration of the tests without a result that earlier runs know."""
    left_unknown: int = 0
    """Number of tests without a result that earlier runs do not know."""

    def handle(self, event: AnyEvent) -> None:
        """Update from an event."""
        self.now_s = max(self.now_s, event.at_s)
        match event:
            case RunStarted():
                self.root = event.root
                # The root in the command's event is the folder of the command; only the controller knows that
                # of pytest.
                self.began = msgspec.structs.replace(self.began or event, root=event.root)
                self.started_at_s = event.at_s
            case TestCollected(test=test):
                self._collected(test)
            case CollectionFailed():
                self.not_collected += 1
            case WorldStarted():
                self.worlds[event.world_id] = RunningWorld(
                    shape=event.shape, slots=event.slots, started_at_s=event.at_s
                )
            case WorldEnded():
                self.worlds.pop(event.world_id, None)
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
        """Return the outcome of a test so far; None if the test is unknown or has no attempt."""
        test, attempts = self.tests.get(nodeid), self.attempts.get(nodeid)
        return TestOutcome(test=test, attempts=tuple(attempts)) if test and attempts else None

    def _collected(self, test: TestCase) -> None:
        if test.nodeid in self.tests:
            return
        self.tests[test.nodeid] = test
        self.waiting[test.suite] += 1
        if self.expect is not None:
            self.expected_s[test.nodeid] = self.expect(test)
        self._owe(test.nodeid, +1)

    def _owe(self, nodeid: str, sign: int) -> None:
        if nodeid in self.expected_s:
            self.left_known_s += sign * self.expected_s[nodeid]
        else:
            self.left_unknown += sign

    def _finished(self, result: TestResult) -> None:
        self.running.pop(result.nodeid, None)
        before = self.outcome(result.nodeid)
        add_attempt(self.attempts.setdefault(result.nodeid, []), result)
        self.spent_s += max(0.0, result.duration_s)
        after = self.outcome(result.nodeid)
        if after is None:
            return
        self.counts[aggregates.classify(after)] += 1
        # A test counts once: its next attempt replaces the one before it.
        if before is not None:
            self.counts[aggregates.classify(before)] -= 1
            return
        self.waiting[after.test.suite] -= 1
        self._owe(result.nodeid, -1)

    @property
    def done(self) -> int:
        """Number of tests with a result."""
        return sum(self.counts.values())

    def left_s(self) -> float | None:
        """Estimate the seconds to the end; None without a basis."""
        elapsed_s = self.now_s - self.started_at_s
        if elapsed_s <= 0 or self.spent_s <= 0 or not self.done:
            return None
        # An unknown test is expected to take as long as the average finished one.
        work_s = self.left_known_s + self.left_unknown * self.spent_s / self.done
        # The expected time of a running test is still in the sum, so the part that has passed leaves it.
        work_s -= sum(self.now_s - running.started_at_s for running in self.running.values())
        # As many tests run at the same time as on average so far.
        return max(0.0, work_s) / max(1.0, self.spent_s / elapsed_s)


def attempt_line(result: TestResult) -> Text:
    """Format the line of an attempt that failed and will be followed by another one."""
    text = f"↻ {one_line(result.nodeid)} failed at attempt {result.attempt}, tried again: {aggregates.finding(result)}"
    return Text(text, style=STYLES["flaky"])


def status_line(progress: Progress) -> Text:
    """Return the counts, the elapsed time, and the remaining time."""
    tests, done, counts = len(progress.tests), progress.done, progress.counts
    line = Text(f"{done:,}/{tests:,}" if tests else "collecting")
    for kind in ("failed", "infrastructure", "flaky", "skipped", "not_run"):
        if counts[kind]:
            line.append(f" · {counts[kind]:,} {aggregates.TITLES[kind]}", style=STYLES[kind])
    if progress.not_collected:
        line.append(f" · {progress.not_collected:,} not collected", style=STYLES["failed"])
    began_at_s = progress.began.at_s if progress.began else progress.started_at_s
    line.append(f" · {duration(progress.now_s - began_at_s)}")
    left_s = progress.left_s()
    if left_s is not None and done < tests:
        line.append(f" · about {duration(max(1.0, left_s))} left", style="bright_black")
    return line
