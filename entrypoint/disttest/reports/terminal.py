"""The end of a run in the terminal: failures with their findings, the table, slow and skipped tests."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from disttest.reports import aggregates
from disttest.reports.aggregates import Row, Tally, Warned, warnings_by_section
from disttest.reports.failures import STYLES, FailurePrinter
from disttest.reports.location import Repository
from disttest.reports.reporter import facts_of, tables_by_section
from disttest.reports.text import count, duration, one_line
from disttest.results.fold import RunResult, TestOutcome

MAX_FAILURES = 50

MARKS = {
    "passed": "✓",
    "failed": "✗",
    "infrastructure": "⚡",
    "flaky": "~",
    "skipped": "-",
    "xfailed": "x",
    "not_run": "·",
}


def print_final(
    console: Console,
    run: RunResult,
    *,
    results_dir: Path | None = None,
    failures: bool = True,
) -> None:
    """Print the result of a run.

    Args:
        console: console to print to; it decides on colour and width.
        run: result of the run.
        results_dir: directory of the logs, whose ends are quoted; None to quote none.
        failures: whether to print each failure in full; False if a view has printed them.
    """
    if failures and (run.bad or run.collection_errors):
        printer = FailurePrinter(console, Repository.of(run), results_dir=results_dir)
        _print_failures(console, run, printer)
    for block in _blocks(run, width=console.width):
        # Cropping would cut the lines that are made without line breaks, such as node ids to copy.
        console.print(block, crop=False)
        console.print()
    console.print(_last_line(run))


def _print_failures(console: Console, run: RunResult, printer: FailurePrinter) -> None:
    console.print(Rule(Text("failures", style="bold red"), characters="─", style="red"))
    for error in run.collection_errors[:MAX_FAILURES]:
        printer.print_collection_error(error)
        console.print()
    groups = aggregates.failure_groups(run)
    for group in groups[:MAX_FAILURES]:
        printer.print_failure(group)
        console.print()
    for what, number in (("collection error", len(run.collection_errors)), ("failure", len(groups))):
        if number > MAX_FAILURES:
            more = count(number - MAX_FAILURES, f"more {what}")
            console.print(Text(f"… and {more}, all in junit.xml"))
            console.print()


def _blocks(run: RunResult, *, width: int) -> Iterator[RenderableType]:
    rows = aggregates.table(run)
    if rows:
        grid = _table(rows, run)
        # rich cuts the cells of a table that is wider than the terminal, so a list takes its place.
        yield grid if width >= Console(width=sys.maxsize).measure(grid).maximum else _list(rows)
    for each in facts_of(run):
        lines = [Text(f"  {name}: {fact}") for name, fact in each.facts]
        yield _titled(each.section, lines, len(lines))
    flaky = [test for test in run.tests if test.flaky]
    if flaky:
        yield _titled("flaky", [_flaky_line(test) for test in flaky[:MAX_FAILURES]], len(flaky))
    for section, warned in warnings_by_section(run):
        repository = Repository.of(run)
        blocks = [line for each in warned[:MAX_FAILURES] for line in _warning_lines(each, repository, width)]
        yield _titled(section, blocks, len(blocks) + max(0, len(warned) - MAX_FAILURES))
    for section, tables in tables_by_section(run, MAX_FAILURES):
        for table in tables:
            lines = [_whole(f"  {line}") for line in table.lines()]
            yield _titled(f"{section}: {table.title}", lines, len(lines))
    if slow := aggregates.slowest(run):
        lines = [
            _whole(f"{duration(test.final.duration_s):>12}  {one_line(test.test.nodeid)}") for test in slow
        ]
        yield _titled("slowest", lines, len(lines))
    for why in aggregates.reasons_left_out(run):
        lines = [_hanging(f"{number:>8,}  ", reason, width) for reason, number in why.counts[:MAX_FAILURES]]
        yield _titled(why.title, lines, len(why.counts))
    if run.notes:
        every = dict.fromkeys(map(one_line, run.notes))
        notes = [Text(f"  {note}") for note in [*every][:MAX_FAILURES]]
        yield _titled("notes", notes, len(every))


def _whole(line: str) -> Text:
    """Format a line without line breaks, so that it can be copied."""
    return Text(line, no_wrap=True, overflow="ignore")


def _hanging(start: str, text: str, width: int) -> Text:
    """Format a text whose continuation lines are aligned with its first word."""
    room = max(width - len(start), 10)
    return Text(textwrap.fill(start + text, len(start) + room, subsequent_indent=" " * len(start)))


def _titled(title: str, lines: list[Text], total: int) -> Group:
    if total > len(lines):
        lines = [*lines, Text(f"  … and {total - len(lines):,} more", style="bright_black")]
    return Group(Text(title, style="bold"), *lines)


def _flaky_line(test: TestOutcome) -> Text:
    first = test.first_bad
    nodeid = one_line(test.test.nodeid)
    return Text(
        f"  {nodeid}: passed at attempt {test.final.attempt}; {aggregates.finding(first)}", style="yellow"
    )


def _warning_lines(warned: Warned, repository: Repository, width: int) -> Iterator[Text]:
    finding, place = warned.finding, warned.place(repository)
    # In the form of a compiler message, so that editors can link to the line.
    start = f"{place}: warning: " if place else ""
    first = _whole(f"  {start}{one_line(finding.message)}")
    first.stylize("yellow")
    yield first
    yield _whole(f"    {warned.title} · {warned.whose}")
    yield _hanging("    effect: ", one_line(finding.effect), width)
    yield _hanging("    what to do: ", one_line(finding.advice), width)


GPU_COLUMN = "GPU-min"
"""Column title in runs that used GPUs."""


def _table(rows: list[Row], run: RunResult) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=len(rows) > 1)
    tally = aggregates.tally(run)
    kinds = aggregates.columns(tally)
    with_gpus = bool(tally.gpu_s)
    titles = [*kinds.values(), "time", *[GPU_COLUMN] * with_gpus]
    total = _cells(tally, kinds, with_gpus=with_gpus) if len(rows) > 1 else [Text()] * len(titles)
    table.add_column("suite", no_wrap=True, footer=Text("all", style="bold"))
    table.add_column("world", no_wrap=True)
    for title, footer in zip(titles, total, strict=True):
        table.add_column(title, justify="right", no_wrap=True, footer=footer)
    for row in rows:
        cells = _cells(row.tally, kinds, with_gpus=with_gpus)
        table.add_row(Text(one_line(row.suite)), Text(row.shape), *cells)
    return table


def _cells(tally: Tally, kinds: Iterable[str], *, with_gpus: bool) -> list[Text]:
    numbers = {kind: tally.in_column(kind) for kind in kinds}
    cells = [
        Text(f"{number:,}" if number else "·", style=STYLES[kind] if number else "dim")
        for kind, number in numbers.items()
    ]
    minutes = Text(f"{tally.gpu_s / 60:.1f}" if tally.gpu_s else "·")
    return [*cells, Text(duration(tally.time_s)), *[minutes] * with_gpus]


def _list(rows: list[Row]) -> Group:
    return Group(*(_list_line(row) for row in rows))


def _list_line(row: Row) -> Text:
    tally = row.tally
    line = Text(f"{one_line(row.suite, 40)} {row.shape}:", style="bold")
    for kind, title in aggregates.columns(tally).items():
        if number := tally.in_column(kind):
            line.append(f" {number:,} {title}", style=STYLES[kind])
    return line.append(f" {duration(tally.time_s)}", style="not bold")


def _last_line(run: RunResult) -> RenderableType:
    style = "bold green" if aggregates.is_green(run) else "bold red"
    line = Text(f"{aggregates.verdict(run)}: {aggregates.headline(run)}", style=style)
    return Group(line, Text(one_line(run.reason), style=style)) if run.reason else line
