"""Findings of plugins that fail no test; equal findings of several tests are shown once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from disttest.model import PluginFinding, SeenCall
from disttest.reports.location import Location, Repository
from disttest.reports.text import count, one_line
from disttest.results.fold import RunResult, TestOutcome


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A finding that fails no test, and the tests in which it occurred."""

    finding: PluginFinding
    """The finding in the first of them."""
    tests: tuple[TestOutcome, ...] = field(repr=False)

    @property
    def section(self) -> str:
        """Section of the reports that lists it."""
        return self.finding.section or self.finding.finder

    @property
    def title(self) -> str:
        """Title: finder and kind."""
        return one_line(f"{self.finding.source}: {self.finding.kind}")

    @property
    def whose(self) -> str:
        """The test, or the first of them and the number of others."""
        first = one_line(self.tests[0].test.nodeid)
        return first if len(self.tests) == 1 else f"{first} and {count(len(self.tests) - 1, 'more test')}"

    def place(self, repository: Repository) -> Location | None:
        """The first of its lines in user code; the test's own line if there is none."""
        for call in _decisive(self.finding):
            if call.file and (file := repository.traced(call.file)):
                return Location(file=file, line=max(1, call.line))
        test = self.tests[0].test
        file = repository.relative(test.file) if test.file else None
        return Location(file=file, line=max(1, test.line)) if file else None


def warnings_of(run: RunResult) -> list[Warned]:
    """Collect findings of final attempts that fail no test, merged if they concern the same lines."""
    groups: dict[tuple[object, ...], list[tuple[PluginFinding, TestOutcome]]] = defaultdict(list)
    for test in run.tests:
        for finding in test.final.findings:
            if not finding.fails:
                lines = frozenset((call.file, call.line) for call in _decisive(finding))
                groups[finding.finder, finding.kind, lines].append((finding, test))
    return [
        Warned(finding=members[0][0], tests=tuple({test.test.nodeid: test for _, test in members}.values()))
        for members in groups.values()
    ]


def warnings_by_section(run: RunResult) -> list[tuple[str, list[Warned]]]:
    """Group the findings by section."""
    sections: dict[str, list[Warned]] = defaultdict(list)
    for warned in warnings_of(run):
        sections[warned.section].append(warned)
    return list(sections.items())


def _decisive(finding: PluginFinding) -> Iterator[SeenCall]:
    yield from (call for order in finding.orders for call in order.calls if call.decides)
