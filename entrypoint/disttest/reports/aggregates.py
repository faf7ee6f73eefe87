"""Aggregates of a run for reports that people read, independent of their format.

Failures of one cause are shown once, and so are equal findings of plugins that fail no test.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from disttest.errors import ExitCode
from disttest.model import (
    Cause,
    Outcome,
    PluginFinding,
    RankEnd,
    RankRecord,
    SeenCall,
    TestResult,
    rank_name,
    rank_names,
)
from disttest.reports.location import Location, Repository
from disttest.reports.text import clean, count, duration, one_line
from disttest.results.fold import RunResult, TestOutcome, WorldSpan
from disttest.results.narrative import how_ended
from disttest.results.repeat import further_commands, repeat_command

ORDINARY = "no world"
KINDS = ("failed", "infrastructure", "flaky", "passed", "xfailed", "skipped", "not_run")
"""Kinds of outcomes, in the order in which a reader wants to see them."""
TITLES = {
    "passed": "passed",
    "failed": "failed",
    "flaky": "flaky",
    "skipped": "skipped",
    "not_run": "not run",
    "infrastructure": "infrastructure",
}
"""The kinds that are counted, and what they are called."""
_ALWAYS = ("passed", "failed")
_seconds_of = attrgetter("final.duration_s")
_SLOW_S = 1.0
"""A test that takes less is not slow, whatever the others take."""


@dataclass(kw_only=True)
class Tally:
    """Number of tests by kind of outcome. Every test is counted in exactly one kind."""

    passed: int = 0
    failed: int = 0
    flaky: int = 0
    """Passed after a failed attempt."""
    skipped: int = 0
    not_run: int = 0
    """The run stopped before, or nothing called the test."""
    xfailed: int = 0
    infrastructure: int = 0
    """Failed for a reason outside the test."""
    time_s: float = 0.0
    """Duration of all attempts together."""
    gpu_s: float = 0.0
    """The same, multiplied by the number of GPUs that the world held."""

    @property
    def total(self) -> int:
        """Number of tests."""
        return sum(getattr(self, kind) for kind in KINDS)

    @property
    def left_out(self) -> int:
        """Number of tests that were not called, for whatever reason."""
        return self.skipped + self.not_run

    def in_column(self, kind: str) -> int:
        """Number of tests in a column of :func:`columns`; expected failures count as passed."""
        return self.passed + self.xfailed if kind == "passed" else int(getattr(self, kind))

    @property
    def bad(self) -> int:
        """Number of tests that make the run red."""
        return self.failed + self.infrastructure

    def add(self, test: TestOutcome, gpus: dict[str, int]) -> None:
        """Count a test; ``gpus`` maps worlds to the number of their GPUs."""
        kind = classify(test)
        setattr(self, kind, getattr(self, kind) + 1)
        for attempt in test.attempts:
            seconds = max(0.0, attempt.duration_s)
            self.time_s += seconds
            self.gpu_s += seconds * gpus.get(attempt.world_id, 0)


def classify(test: TestOutcome) -> str:
    """Return the name of the :class:`Tally` field to which a test belongs."""
    match test.final.outcome:
        case Outcome.FAILED | Outcome.ERROR:
            return "infrastructure" if test.final.cause is Cause.INFRASTRUCTURE else "failed"
        case Outcome.SKIPPED:
            return "skipped"
        case Outcome.NOT_RUN:
            return "not_run"
        case Outcome.XFAILED:
            return "flaky" if test.flaky else "xfailed"
        case Outcome.PASSED | Outcome.XPASSED:
            return "flaky" if test.flaky else "passed"


def gpus_by_world(worlds: Iterable[WorldSpan]) -> dict[str, int]:
    """Map each world to the number of its GPUs."""
    return {world.world_id: len(world.slots) if world.on_gpus else 0 for world in worlds}


def tally(run: RunResult) -> Tally:
    """Count all tests of a run."""
    total = Tally()
    gpus = gpus_by_world(run.worlds)
    for test in run.tests:
        total.add(test, gpus)
    return total


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the final table: a suite at one world size and backend."""

    suite: str
    shape: str
    tally: Tally


def columns(total: Tally) -> dict[str, str]:
    """The columns of counts in the final table, kind -> title: passed and failed, and others that are not zero."""
    return {kind: title for kind, title in TITLES.items() if kind in _ALWAYS or total.in_column(kind)}


def table(run: RunResult) -> list[Row]:
    """Count the tests by suite and shape: suites in the order of the run, shapes by size."""
    gpus = gpus_by_world(run.worlds)
    groups: dict[str, dict[tuple[int, str], Tally]] = defaultdict(dict)
    for test in run.tests:
        shape = test.test.world
        key = (shape.size, str(shape)) if shape else (0, ORDINARY)
        groups[test.test.suite].setdefault(key, Tally()).add(test, gpus)
    return [
        Row(suite=suite, shape=key[1], tally=shapes[key])
        for suite, shapes in groups.items()
        for key in sorted(shapes)
    ]


def slowest(run: RunResult, limit: int = 10) -> list[TestOutcome]:
    """Return the tests whose final attempt took a second and twice the median, longest first; none of fewer than three."""
    ran = sorted((test for test in run.tests if test.final.duration_s > 0), key=_seconds_of, reverse=True)
    least_s = max(_SLOW_S, 2 * _seconds_of(ran[len(ran) // 2])) if len(ran) > 2 else math.inf
    return [test for test in ran[:limit] if _seconds_of(test) >= least_s]


@dataclass(frozen=True, kw_only=True)
class Reasons:
    """Reasons for tests in one column of the final table that were left out."""

    title: str
    """Title of the column."""
    counts: tuple[tuple[str, int], ...]
    """Each reason with its number of tests, most frequent first."""

    @property
    def tests(self) -> int:
        """Number of tests."""
        return sum(number for _, number in self.counts)


def reasons_left_out(run: RunResult) -> list[Reasons]:
    """Return the reasons for skipped tests and for tests that were not run, if there are any."""
    reasons: dict[str, Counter[str]] = {"skipped": Counter(), "not_run": Counter()}
    for test in run.tests:
        if not test.final.outcome.has_run:
            reasons[classify(test)][one_line(test.final.message) or "no reason given"] += 1
    return [
        Reasons(title=TITLES[kind], counts=tuple(counts.most_common()))
        for kind, counts in reasons.items()
        if counts
    ]


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Tests that failed with the same message, so that a broken machine is reported once."""

    message: str
    tests: tuple[TestOutcome, ...] = field(repr=False)
    repeat: str = ""
    """Command that repeats the first of them."""
    further: Mapping[str, str] = field(default_factory=dict)
    """Word -> command line that a plugin offers for the first of them."""

    @property
    def first(self) -> TestOutcome:
        """The test that represents the group."""
        return self.tests[0]


def failure_groups(run: RunResult) -> list[FailureGroup]:
    """Group failures by cause and message; failures of tests come before those of the machine."""
    groups: dict[tuple[bool, str, str], list[TestOutcome]] = defaultdict(list)
    for test in run.bad:
        infrastructure = test.final.cause is Cause.INFRASTRUCTURE
        message = finding(test.final)
        # Equal messages of different tests are one event only if the machine is the cause.
        whose = "" if infrastructure else test.test.nodeid
        groups[infrastructure, whose, message].append(test)
    in_order = sorted(groups.items(), key=lambda item: item[0][0])
    return [
        FailureGroup(
            message=key[2],
            tests=tuple(tests),
            repeat=repeat_command(tests[0].test, run, tests[0].final.after),
            further=further_commands(tests[0].test, tests[0].final, run),
        )
        for key, tests in in_order
    ]


def finding(result: TestResult) -> str:
    """Return the one-line finding; never empty."""
    return one_line(result.message) or f"{result.outcome} without a message"


def evidence(result: TestResult) -> list[str]:
    """Return the texts of a bad result: that of the culprit, then those of other ranks, each text once."""
    known = result.message + "\n" + result.details
    culprit_first = sorted(result.ranks, key=lambda rank: rank.rank != result.culprit)
    speakers: dict[tuple[str, str], list[RankRecord]] = {}
    for rank in culprit_first:
        if not _was_cleared_away(rank) and (text := _rank_text(rank, known)):
            speakers.setdefault((f"{how_ended(rank)} in {rank.phase}", _NUMBERS.sub("#", text)), []).append(
                rank
            )
    sections = (
        clean(f"----- {_names(alike)}: {ended} -----\n{_rank_text(alike[0], known)}")
        for (ended, _), alike in speakers.items()
    )
    told = [part.strip("\n") for part in (clean(result.details), *sections) if part.strip()]
    alike = [rank for rank in culprit_first if rank.details and _is_like(rank.details, result.details)]
    return [f"----- {_names(alike)} -----", *told] if len(alike) > 1 else told


_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
"""Texts of ranks that differ only in numbers (ranks, addresses, times) are alike."""


def _is_like(text: str, other: str) -> bool:
    return _NUMBERS.sub("#", text.strip()) in _NUMBERS.sub("#", other)


def _names(ranks: Sequence[RankRecord]) -> str:
    names = rank_names([rank.rank for rank in ranks])
    return names if len(ranks) == 1 else f"{len(ranks)} ranks alike: {names}"


def _was_cleared_away(rank: RankRecord) -> bool:
    """Whether it was ended after another rank had failed, and left no text."""
    return rank.end is RankEnd.KILLED and not (rank.hung or rank.details or rank.all_stacks)


def _rank_text(rank: RankRecord, known: str) -> str:
    stacks = (
        "" if rank.details and not rank.hung else rank.all_stacks
    )  # of a rank that raised, the traceback says all
    details = "" if rank.details and _is_like(rank.details, known) else rank.details
    texts = (rank.message, details, stacks)
    return "\n".join(text for text in texts if text.strip() and text not in known)


def who(result: TestResult) -> str:
    """Return ``rank 1 is the culprit; victims: ranks 0, 2``, or an empty string without a culprit."""
    if result.culprit is None:
        return ""
    text = f"{rank_name(result.culprit)} is the culprit"
    if result.victims:
        text += f"; {'victim' if len(result.victims) == 1 else 'victims'}: {rank_names(result.victims)}"
    return text


VERDICTS = {
    ExitCode.PASSED: "passed",
    ExitCode.FAILED: "failed",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.INTERNAL: "broken",
    ExitCode.USAGE: "wrong usage",
    ExitCode.NOTHING_COLLECTED: "empty: nothing was collected",
    ExitCode.NOT_ENOUGH_DEVICES: "not run: not enough devices",
    ExitCode.INFRASTRUCTURE: "failed: the machine is broken",
    ExitCode.ENGINE: "not run: the container engine refused",
    ExitCode.SCHEDULER: "not run: the scheduler refused",
    ExitCode.SETUP: "not run: the script before the tests failed",
    ExitCode.DEADLINE: "stopped at its deadline",
}


def verdict(run: RunResult) -> str:
    """Return the verdict of a run in a few words."""
    if run.exit_code > 128:
        return f"ended by signal {run.exit_code - 128}"
    # pytest has one code for both: 2 for an interrupted run and for a file that cannot be collected.
    if run.exit_code == ExitCode.INTERRUPTED and run.collection_errors:
        return "failed: not every file could be collected"
    return VERDICTS.get(ExitCode(run.exit_code), "failed") if run.exit_code in VERDICTS else "failed"


def is_green(run: RunResult) -> bool:
    """Whether the run is green."""
    # The exit code alone is not trusted: a journal may come from anywhere.
    red = run.bad or run.collection_errors or (run.flaky_fails and run.flaky)
    return run.exit_code == ExitCode.PASSED and not red


def headline(run: RunResult) -> str:
    """Return the counts that are not zero: ``2 failed, 31 passed in 16.2 s``, of the whole run if that is known."""
    total = tally(run)
    named = (
        (total.failed, "failed"),
        (total.infrastructure, "infrastructure"),
        (len(run.collection_errors), "not collected"),
        (total.flaky, "flaky"),
        (total.passed, "passed"),
        (total.skipped, "skipped"),
        (total.not_run, "not run"),
        (total.xfailed, "expected to fail"),
    )
    parts = [f"{number:,} {name}" for number, name in named if number]
    # The user waits for imports and collection, too, so the whole time counts where it is known.
    took_s = run.duration_s if run.whole_s is None else run.whole_s
    return f"{', '.join(parts) or count(0, 'test')} in {duration(took_s)}"


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
