"""Show a running run: as a live view on a terminal, or as plain lines in a log.

The views start no thread and read no clock. The loop that reads events calls ``take`` with each event, ``show`` with
pytest's output, and ``tick`` periodically.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.text import Text

from disttest.limits import HEARTBEAT_S, PROMPT_S
from disttest.model import CiJob, Outcome, TestResult
from disttest.output import write_trusted
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
    """A view of a running run."""

    shows_failures: bool
    """Whether each failure is shown in full when it occurs, so that the end need not repeat it."""

    def handle(self, event: AnyEvent) -> None:
        """Show an event."""

    def show(self, text: str, *, error: bool) -> None:
        """Show pytest's output or (``error``) error output, in pieces of any size."""

    def tick(self, now_s: float) -> None:
        """Advance the time; ``now_s`` is on the clock of the events."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainView:
    """View for logs: one block per test. In a CI job passed tests are folded, suite by suite."""

    shows_failures = True

    def __init__(
        self,
        console: Console,
        *,
        job: CiJob | None = None,
        quiet: bool = False,
        results_dir: Path | None = None,
        expect: Expect | None = None,
    ) -> None:
        self._progress = Progress(expect=expect)
        self._console = console
        self._job = job
        self._quiet = quiet
        self._results_dir = results_dir
        # Suite -> lines to print when the suite is complete.
        self._held: dict[str, list[Text]] = {}
        # Unfinished lines of pytest's output and error output.
        self._cut = {False: "", True: ""}
        self._spoke_at_s = 0.0
        self._shown_at_s = 0.0

    def handle(self, event: AnyEvent) -> None:
        """Show an event."""
        self._progress.handle(event)
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
        """Show pytest's output in whole lines."""
        self._shown_at_s = self._progress.now_s
        # Lines of tests come in between, so the lines of pytest are written as a whole.
        whole, newline, self._cut[error] = (self._cut[error] + text).rpartition("\n")
        if newline:
            self._write(whole + newline, error=error)

    def tick(self, now_s: float) -> None:
        """Print a status line if nothing was printed for long."""
        self._progress.now_s = max(self._progress.now_s, now_s)
        if now_s - self._shown_at_s >= PROMPT_S:
            self._show_cut_lines()
        if now_s - self._spoke_at_s >= HEARTBEAT_S and self._progress.running:
            oldest = min(self._progress.running.values(), key=lambda entry: entry.started_at_s)
            runs_s = duration(now_s - oldest.started_at_s)
            line = Text("… ").append_text(status_line(self._progress))
            self._say(line.append(f" · longest now: {one_line(oldest.test.nodeid)} ({runs_s})"))

    def close(self) -> None:
        """Print the lines that are still held back."""
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
            # There are as many as the run has left out; its end counts them, with the reason.
            pass
        elif self._job:
            # A folded block cannot be continued later, so the lines of a suite wait until the suite is
            # complete.
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
        if self._quiet or self._job is None:
            self._say(Text(title))
            return
        write_trusted(self._console.file, self._job.fold(title))
        for line in lines:
            self._say(line)
        write_trusted(self._console.file, self._job.end_fold)

    def _say(self, line: Text) -> None:
        self._spoke_at_s = self._progress.now_s
        self._console.print(line, soft_wrap=True)

    def _show_cut_lines(self, end: str = "") -> None:
        for error, text in self._cut.items():
            # The log of a job shows no line before it ends, and there is no user to answer a prompt.
            if text and (end or not self._job):
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
    """Pass pytest's own output on as it comes, so that pytest never waits for a slow reader."""

    shows_failures = True

    def __init__(self, console: Console) -> None:
        self._console = console

    def handle(self, event: AnyEvent) -> None:
        """Do nothing: pytest shows it."""

    def show(self, text: str, *, error: bool) -> None:
        """Pass the text on."""
        file = sys.stderr if error else self._console.file
        file.write(text)
        file.flush()

    def tick(self, now_s: float) -> None:
        """Do nothing: pytest keeps its own time."""

    def close(self) -> None:
        """Do nothing: no line is held back."""


def make_view(
    console: Console,
    *,
    live: bool,
    job: CiJob | None = None,
    quiet: bool = False,
    results_dir: Path | None = None,
    expect: Expect | None = None,
) -> RunView:
    """Return the view for the output: live for a user at a terminal, lines elsewhere.

    Args:
        console: console to print to; it decides on colour and width.
        live: whether a user watches; a terminal that cannot move its cursor gets lines anyway.
        job: the CI job that shows the output; passed tests are folded in its log.
        quiet: whether to print only the number of passed tests.
        results_dir: directory of the ranks' logs.
        expect: returns the expected duration of a test, for the remaining time.
    """
    # TERM=dumb cannot move the cursor.
    if live and console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, expect=expect)
    return PlainView(console, job=job, quiet=quiet, results_dir=results_dir, expect=expect)
