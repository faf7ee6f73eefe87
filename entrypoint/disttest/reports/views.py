"""A run while it lasts, shown: as a live view on a terminal, or as plain lines in a log.

The views start no thread and read no clock: whoever runs the loop calls ``take`` with each event, ``show`` with what
pytest prints beside, and ``tick`` now and then.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.text import Text

from disttest import github
from disttest.limits import HEARTBEAT_S, PROMPT_S
from disttest.model import Outcome, TestResult
from disttest.reports import aggregates
from disttest.reports.aggregates import FailureGroup
from disttest.reports.failures import STYLES, FailurePrinter
from disttest.reports.live import LiveView
from disttest.reports.location import Repository
from disttest.reports.progress import Expect, Progress, attempt_line, status_line
from disttest.reports.terminal import MARKS
from disttest.reports.text import count, duration, one_line
from disttest.results.events import AnyEvent, CollectionFailed, Noted, RunStarted, TestFinished
from disttest.results.fold import CollectionError, TestOutcome
from disttest.results.repeat import further_commands, repeat_command


class RunView(Protocol):
    """Something that shows a run while it lasts."""

    tells_failures: bool
    """Whether it tells each failure in full as it comes, so that the end need not."""

    def take(self, event: AnyEvent) -> None:
        """Show what an event says."""

    def show(self, text: str, *, error: bool) -> None:
        """Show what pytest printed on its output or (``error``) on its error output, in pieces of any size."""

    def tick(self, now_s: float) -> None:
        """Time has passed; ``now_s`` is on the clock of the events."""

    def close(self) -> None:
        """Leave the terminal in order."""


class PlainView:
    """For logs: one block per test. On GitHub the tests that went well are folded away, suite by suite."""

    tells_failures = True

    def __init__(
        self,
        console: Console,
        *,
        on_github: bool = False,
        quiet: bool = False,
        results_dir: Path | None = None,
        expect: Expect | None = None,
    ) -> None:
        self._progress = Progress(expect=expect)
        self._console = console
        self._on_github = on_github
        self._quiet = quiet
        self._results_dir = results_dir
        # Suite -> lines to be shown when the suite is complete.
        self._held: dict[str, list[Text]] = {}
        # The line that pytest has begun, on its output and on its error output.
        self._cut = {False: "", True: ""}
        self._spoke_at_s = 0.0
        self._shown_at_s = 0.0

    def take(self, event: AnyEvent) -> None:
        """Show what an event says."""
        self._progress.take(event)
        match event:
            case RunStarted():
                self._spoke_at_s = event.at_s
            case TestFinished(result=result, again=True):
                self._say(attempt_line(result))
            case TestFinished(result=result):
                self._finished(result)
            case CollectionFailed(nodeid=nodeid, message=message):
                self._printer().print_collection_error(CollectionError(nodeid=nodeid, message=message))
            case Noted(message=message, shown=False):
                self._say(Text(f"note: {one_line(message)}"))
            case _:
                pass

    def show(self, text: str, *, error: bool) -> None:
        """Show what pytest printed, whole lines only."""
        self._shown_at_s = self._progress.now_s
        whole, newline, self._cut[error] = (self._cut[error] + text).rpartition("\n")
        if newline:
            self._write(whole + newline, error=error)

    def tick(self, now_s: float) -> None:
        """Say a word when nothing has been said for long."""
        self._progress.now_s = max(self._progress.now_s, now_s)
        if now_s - self._shown_at_s >= PROMPT_S:
            self._show_cut_lines()
        if now_s - self._spoke_at_s >= HEARTBEAT_S and self._progress.running:
            oldest = min(self._progress.running.values(), key=lambda entry: entry.started_at_s)
            runs_s = duration(now_s - oldest.started_at_s)
            line = Text("… ").append_text(status_line(self._progress))
            self._say(line.append(f" · longest now: {one_line(oldest.test.nodeid)} ({runs_s})"))

    def close(self) -> None:
        """Say what is still held back."""
        for suite in tuple(self._held):
            self._release(suite)
        self._show_cut_lines(end="\n")

    def _finished(self, result: TestResult) -> None:
        outcome = self._progress.outcome(result.nodeid)
        if outcome is None:
            return
        kind = aggregates.classify(outcome)
        line = Text(f"{MARKS[kind]} {one_line(result.nodeid)} {_word(outcome, kind)}", style=STYLES[kind])
        line.append(f" ({duration(result.duration_s)})", style="bright_black")
        if result.outcome.is_bad:
            self._say(line)
            began = self._progress.began
            group = FailureGroup(
                message=aggregates.finding(result),
                tests=(outcome,),
                repeat=repeat_command(outcome.test, began, result.after) if began else "",
                further=further_commands(outcome.test, result, began) if began else {},
            )
            self._printer().print_failure(group)
        elif result.outcome is Outcome.NOT_RUN:
            pass  # as many as the run did not come to: the end of the run counts them, with the reason
        elif self._on_github:
            self._held.setdefault(outcome.test.suite, []).append(line)
        elif not self._quiet:
            self._say(line)
        self._release_if_complete(outcome.test.suite)

    def _printer(self) -> FailurePrinter:
        self._spoke_at_s = self._progress.now_s
        began = self._progress.began
        repository = Repository.of(began) if began else Repository(root=self._progress.root)
        return FailurePrinter(self._console, repository, results_dir=self._results_dir)

    def _release_if_complete(self, suite: str) -> None:
        if suite in self._held and not self._progress.waiting[suite]:
            self._release(suite)

    def _release(self, suite: str) -> None:
        lines = self._held.pop(suite)
        title = f"{one_line(suite)}: {count(len(lines), 'test')} went well"
        if self._quiet:
            self._say(Text(title))
            return
        github.send(self._console.file, github.group(title))
        for line in lines:
            self._say(line)
        github.send(self._console.file, github.end_group())

    def _say(self, line: Text) -> None:
        self._spoke_at_s = self._progress.now_s
        self._console.print(line, soft_wrap=True)

    def _show_cut_lines(self, end: str = "") -> None:
        for error, text in self._cut.items():
            # GitHub shows no line before it has an end, and nobody is there to answer.
            if text and (end or not self._on_github):
                self._cut[error] = ""
                self._write(text + end, error=error)

    def _write(self, text: str, *, error: bool) -> None:
        file = sys.stderr if error else self._console.file
        file.write(text)
        file.flush()


def _word(outcome: TestOutcome, kind: str) -> str:
    if kind == "flaky":
        return f"passed at attempt {outcome.final.attempt}"
    reason = one_line(outcome.final.message, 200)
    return f"{kind}: {reason}" if kind in ("skipped", "xfailed") and reason else kind


class RelayView:
    """pytest's own output, handed on as it comes: where pytest is to be heard and must not wait for who listens."""

    tells_failures = True

    def __init__(self, console: Console) -> None:
        self._console = console

    def take(self, event: AnyEvent) -> None:
        """Nothing: pytest tells it."""

    def show(self, text: str, *, error: bool) -> None:
        """Hand it on."""
        file = sys.stderr if error else self._console.file
        file.write(text)
        file.flush()

    def tick(self, now_s: float) -> None:
        """Nothing: pytest has its own time."""

    def close(self) -> None:
        """Nothing is held back."""


def make_view(
    console: Console,
    *,
    live: bool,
    on_github: bool = False,
    quiet: bool = False,
    results_dir: Path | None = None,
    expect: Expect | None = None,
) -> RunView:
    """Return the view that suits the place: live where somebody looks on, lines elsewhere.

    Args:
        console: where it shows; it decides on colour and width.
        live: whether somebody looks on; a terminal that cannot move its cursor gets lines all the same.
        on_github: fold what went well away.
        quiet: of tests that went well, only the number.
        results_dir: where the logs of ranks are.
        expect: how long a test is expected to take, for the time left.
    """
    if live and console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, expect=expect)
    return PlainView(console, on_github=on_github, quiet=quiet, results_dir=results_dir, expect=expect)
