"""Print one failure in the terminal: finding, place, test and culprit, evidence, and the repeat command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from disttest.model import Cause, TestResult, rank_name
from disttest.reports import aggregates
from disttest.reports.aggregates import FailureGroup
from disttest.reports.location import Repository, locate
from disttest.reports.log_excerpts import LogFolder
from disttest.reports.text import clean, count, one_line, shorten
from disttest.results.directory import short_path
from disttest.results.findings import describe_plugins
from disttest.results.fold import CollectionError, TestOutcome
from disttest.results.narrative import describe_ranks, how_failed

MAX_EVIDENCE = 6_000
"""Characters of a failure's text; the logs and the other reports contain all of it."""
MAX_LOG = 4_096
"""Characters of the end of the culprit's log."""

STYLES = {
    "passed": "green",
    "failed": "bold red",
    "infrastructure": "bold magenta",
    "flaky": "yellow",
    "skipped": "bright_black",
    "not_run": "bright_black",
    "xfailed": "bright_black",
}


class FailurePrinter:
    """Prints failures of one run.

    Args:
        console: console to print to; it decides on colour and width.
        repository: repository to which file names are relative.
        results_dir: directory of the logs; without it, none is quoted.
    """

    def __init__(self, console: Console, repository: Repository, *, results_dir: Path | None = None) -> None:
        self._console = console
        self._repository = repository
        self._logs = LogFolder(results_dir)
        self._in_results = f"{short_path(results_dir)}/" if results_dir else ""

    def print_failure(self, group: FailureGroup) -> None:
        """Print one failure, or one that several tests share."""
        self._print_lines(self._head(group))
        self._print_evidence("\n\n".join(self._evidence(group.first)))
        self._print_lines(self._foot(group))

    def print_collection_error(self, error: CollectionError) -> None:
        """Print the reason why a file could not be collected."""
        last = one_line(error.message.strip().rpartition("\n")[2])
        title = f"✗ {one_line(error.nodeid)} could not be collected: {last}"
        self._print_lines([Text(title, style=STYLES["failed"])])
        self._print_evidence(error.message)

    def _print_lines(self, lines: Iterator[Text] | list[Text]) -> None:
        for line in lines:
            self._console.print(line, soft_wrap=True)

    def _head(self, group: FailureGroup) -> Iterator[Text]:
        test = group.first
        style = STYLES[aggregates.classify(test)]
        # In the form of a compiler message, so that editors and problem matchers can link to the line.
        # No line of a test is to blame for a broken machine.
        place = None if test.final.cause is Cause.INFRASTRUCTURE else locate(test, self._repository)
        yield Text(f"{place}: error: {group.message}" if place else f"✗ {group.message}", style=style)
        if len(group.tests) > 1:
            yield Text(f"  {count(len(group.tests), 'test')}, the first of them:", style="bold")
        told = [one_line(test.test.nodeid), how_failed(test.final), aggregates.who(test.final)]
        yield Text("  " + " · ".join(part for part in told if part))
        for earlier in test.attempts[:-1]:
            yield Text(f"  attempt {earlier.attempt}: {aggregates.finding(earlier)}", style="yellow")

    def _evidence(self, test: TestOutcome) -> Iterator[str]:
        """Yield the culprit's own text, one line for each rank, stacks, and the end of the culprit's log."""
        result = test.final
        yield from (text for text in [clean(result.details).strip("\n")] if text)
        if found := clean("\n".join(describe_plugins(result))):
            yield found
        if result.ranks:
            lines = (clean(line) for line in describe_ranks(result, logs_in=None))
            yield "\n".join(line if line.startswith(" ") else one_line(line) for line in lines)
        if log := self._end_of_log(result):
            yield log

    def _end_of_log(self, result: TestResult) -> str:
        speaker = next((rank for rank in result.ranks if rank.rank == result.culprit), None)
        speaker = speaker or next(iter(result.ranks), None)
        text = self._logs.own_output(speaker.log, MAX_LOG) if speaker else ""
        return f"end of the log of {rank_name(speaker.rank)}:\n{text}" if speaker and text else ""

    def _print_evidence(self, text: str) -> None:
        """Print output of a test or a rank: cleaned, shortened, indented."""
        text = shorten(
            clean(text).strip("\n"), MAX_EVIDENCE, whole=f"disttest explain {self._in_results}".strip(" /")
        )
        if not text:
            return
        # Written directly to the file: there may be thousands of lines, and none is styled.
        self._console.file.write("".join(f"    {line}\n" for line in text.splitlines()))

    def _foot(self, group: FailureGroup) -> Iterator[Text]:
        result = group.first.final
        culprit_first = sorted(result.ranks, key=lambda rank: rank.rank != result.culprit)
        logs = list(dict.fromkeys(clean(rank.log) for rank in culprit_first if rank.log))
        if logs:
            more = f" and {len(logs) - 1} more next to it" if len(logs) > 1 else ""
            yield Text(f"  log: {self._in_results}{logs[0]}{more}", style="bright_black")
        yield Text.assemble(("  repeat: ", "bright_black"), (group.repeat, "cyan"))
        for word, line in group.further.items():
            yield Text.assemble((f"  {word}: ", "bright_black"), (line, "cyan"))
