"""Live view of a run: important events scroll by above a progress bar and the running worlds."""

from __future__ import annotations

import sys

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from disttest.limits import PROMPT_S, REDRAW_S
from disttest.model import TestResult
from disttest.reports import aggregates
from disttest.reports.failures import STYLES
from disttest.reports.progress import Expect, Progress, Running, RunningWorld, attempt_line, status_line
from disttest.reports.text import count, duration, one_line
from disttest.results.events import AnyEvent, CollectionFailed, Noted, TestFinished


class LiveView:
    """View for a terminal: failures scroll by, with the progress bar and the running worlds below."""

    shows_failures = False

    def __init__(self, console: Console, *, expect: Expect | None = None) -> None:
        self._progress = Progress(expect=expect)
        self._console = console
        self._live: Live | None = None
        self._drawn_at_s = 0.0
        self._shown_at_s = 0.0
        # Unfinished lines of pytest's output and error output.
        self._cut = {False: "", True: ""}
        # Whether a prompt is visible; the view then waits for the next event.
        self._steps_aside = False

    def handle(self, event: AnyEvent) -> None:
        """Show an event."""
        self._progress.handle(event)
        self._steps_aside = False
        match event:
            case TestFinished(result=result, again=True):
                self._say(attempt_line(result))
            case TestFinished(result=result):
                self._finished(result)
            case CollectionFailed(nodeid=nodeid, message=message):
                last = one_line(message.strip().rpartition("\n")[2])
                self._say(
                    Text(f"✗ {one_line(nodeid)} could not be collected: {last}", style=STYLES["failed"])
                )
            case Noted(message=message, shown=False):
                self._say(Text(one_line(message), style="bright_black"))
            case _:
                pass
        if event.at_s - self._drawn_at_s >= REDRAW_S:
            self._refresh()

    def show(self, text: str, *, error: bool) -> None:
        """Print pytest's output above the view; errors go to stderr if that is redirected."""
        if error and not sys.stderr.isatty():
            sys.stderr.write(text)
            sys.stderr.flush()
            return
        self._shown_at_s = self._progress.now_s
        if self._steps_aside:
            self._write(text)
            return
        whole, newline, self._cut[error] = (self._cut[error] + text).rpartition("\n")
        if newline:
            # pytest's lines have colours: rich must parse the escape sequences to know their width.
            self._say(Text.from_ansi(whole))

    def tick(self, now_s: float) -> None:
        """Advance the times of running tests."""
        self._progress.now_s = max(self._progress.now_s, now_s)
        if any(self._cut.values()) and now_s - self._shown_at_s >= PROMPT_S:
            self._step_aside()
        if not self._steps_aside:
            self._refresh()

    def close(self) -> None:
        """Remove the view; the lines above it stay."""
        for error, text in self._cut.items():
            self._cut[error] = ""
            if text:
                self._say(Text.from_ansi(text))
        if self._live is not None:
            self._refresh()
        self._stop()

    def _finished(self, result: TestResult) -> None:
        outcome = self._progress.outcome(result.nodeid)
        if outcome is None or not result.outcome.is_bad:
            return
        finding = (f"✗ {aggregates.finding(result)}\n", STYLES[aggregates.classify(outcome)])
        where = (f"  {one_line(result.nodeid)} · {duration(result.duration_s)}", "bright_black")
        self._say(Text.assemble(finding, where))

    def _say(self, line: Text) -> None:
        # The terminal itself breaks long lines, so that a node id can be copied in one piece.
        self._console.print(line, soft_wrap=True)

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()

    def _step_aside(self) -> None:
        """Remove the view while a process waits for an answer, and pass its output on unchanged."""
        self._stop()
        self._steps_aside = True
        for error, text in self._cut.items():
            self._cut[error] = ""
            self._write(text)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _refresh(self) -> None:
        self._drawn_at_s = self._progress.now_s
        if self._live is None:
            self._live = Live(
                console=self._console,
                # rich would start a thread for it.
                auto_refresh=False,
                transient=True,
                # sys.stdout is the outlet of `output.py`, which rich must not replace.
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(render_live(self._progress, height=self._console.height), refresh=True)


def render_live(progress: Progress, *, height: int) -> RenderableType:
    """Render the lower part of the live view, a few lines less than ``height``."""
    lines: list[RenderableType] = []
    if progress.tests:
        bar = Table.grid(expand=True)
        bar.add_row(ProgressBar(total=len(progress.tests), completed=progress.done))
        lines.append(bar)
    lines.append(status_line(progress))
    running = _running(progress)
    room = max(1, height - 5)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, style="cyan", overflow="ellipsis", max_width=30)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for _, cells in running[:room]:
        table.add_row(*cells)
    if running:
        lines.append(table)
    if len(running) > room:
        lines.append(Text(f"… and {len(running) - room:,} more running", style="bright_black"))
    return Group(*lines)


Cells = tuple[Text, Text, Text]


def _running(progress: Progress) -> list[tuple[float, Cells]]:
    """Return start time and cells of each running test and each idle world, oldest first."""
    busy = {entry.world_id for entry in progress.running.values()}
    lines = [(entry.started_at_s, _test_cells(entry, progress)) for entry in progress.running.values()]
    lines += [
        (world.started_at_s, _world_cells(world, progress))
        for world_id, world in progress.worlds.items()
        if world_id not in busy
    ]
    return sorted(lines, key=lambda line: line[0])


def _test_cells(entry: Running, progress: Progress) -> Cells:
    world = progress.worlds.get(entry.world_id)
    name = one_line(entry.test.name, 200)
    if entry.attempt > 1:
        name += f" (attempt {entry.attempt})"
    seconds_s = progress.now_s - entry.started_at_s
    # Without earlier timings, half of the time limit counts as late.
    late = seconds_s > max(10.0, 3 * progress.expected_s.get(entry.test.nodeid, entry.test.timeout_s / 6))
    slots = _short(world.slots) if world else "-"
    return Text(slots), Text(name), Text(duration(seconds_s), style="yellow" if late else "")


def _world_cells(world: RunningWorld, progress: Progress) -> Cells:
    seconds = duration(progress.now_s - world.started_at_s)
    style = "bright_black"
    return (
        Text(_short(world.slots)),
        Text(f"world of {count(world.shape.size, 'rank')}, between tests", style=style),
        Text(seconds, style=style),
    )


def _short(slots: tuple[str, ...]) -> str:
    """Format the names of slots: ``gpu:0,1,2`` for three slots of one kind."""
    kinds: dict[str, list[str]] = {}
    for slot in slots:
        kind, _, number = slot.partition(":")
        kinds.setdefault(kind, []).append(number)
    return " ".join(
        f"{kind}:{','.join(numbers)}" if any(numbers) else kind for kind, numbers in kinds.items()
    )
