"""Floors: the minimum that a run must have done, so that a run that skips almost everything is red. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from disttest.errors import UsageError
from disttest.model import Frozen, Outcome
from disttest.safe_open import read_input

if TYPE_CHECKING:
    from disttest.results.fold import RunResult, TestOutcome


class Expectation(Frozen):
    """One line of an ``--expect`` file."""

    text: str
    """A node id, a part of one that ends before ``::`` or ``[``, or a pattern with ``*``."""
    line: int

    def names_one_of(self, tests: _Tests) -> bool:
        """Whether the line names at least one of the tests."""
        if "*" not in self.text:
            return self.text in tests.names
        # Only * is special: node ids contain the brackets that fnmatch would interpret.
        pattern = re.compile(re.escape(self.text).replace(r"\*", ".*"))
        return any(map(pattern.fullmatch, tests.ids))


class _Tests(NamedTuple):
    """Tests, and all texts without ``*`` that name one of them: a manifest may have as many lines as there are tests."""

    ids: tuple[str, ...]
    names: frozenset[str]


def _named(nodeids: Iterable[str]) -> _Tests:
    ids = tuple(nodeids)
    # A plain prefix would let `test_sum` name `test_sum_of_squares`.
    ends = ((nodeid, end.start()) for nodeid in ids for end in re.finditer(r"::|\[|/|\Z", nodeid))
    return _Tests(ids, frozenset(nodeid[:end] for nodeid, end in ends))


class Manifest(Frozen):
    """An ``--expect`` file: one node id or pattern per line; blank lines and ``#`` comments are ignored."""

    file: str
    """Its name, for messages."""
    expectations: tuple[Expectation, ...]


def read_manifest(file: str) -> Manifest:
    """Read an ``--expect`` file.

    Raises:
        UsageError: it cannot be read, or names no test.
    """
    try:
        return parse_manifest(read_input(Path(file)).decode("utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def parse_manifest(text: str, file: str) -> Manifest:
    """Parse the text of an ``--expect`` file.

    Raises:
        UsageError: it names no test.
    """
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    found = tuple(Expectation(text=line, line=number) for number, line in lines if line and line[0] != "#")
    if not found:
        raise UsageError(f"{file} names no test; leave the option out, or write one node id a line")
    return Manifest(file=file, expectations=found)


class Floors(Frozen):
    """The requested floors; by default none."""

    min_tests: int = 0
    """Minimum number of tests that ran, with any outcome: all except skipped ones."""
    min_worlds: int = 0
    """Minimum number of tests that ran in a world."""
    max_skip_ratio: float = 1.0
    """Maximum share of skipped tests."""
    expect: Manifest | None = None
    strict: bool = False
    """Whether every suite must have run a test: see :func:`idle_suites`."""


def check_floors(run: RunResult, floors: Floors) -> tuple[str, ...]:
    """List the floors that a run has missed, one message each."""
    ran = [test.test.nodeid for test in run.tests if test.final.outcome.has_run]
    skipped = run.counts()[Outcome.SKIPPED]
    broken: list[str] = []
    if len(ran) < floors.min_tests:
        broken.append(
            f"only {len(ran)} tests ran and --min-tests asks for {floors.min_tests} "
            f"({skipped} of {len(run.tests)} were skipped): see the skip reasons, or lower the floor"
        )
    in_worlds = sum(test.test.world is not None and test.final.outcome.has_run for test in run.tests)
    if in_worlds < floors.min_worlds:
        broken.append(
            f"only {in_worlds} tests ran in a world and --min-worlds asks for {floors.min_worlds}: mark the tests that need "
            "ranks (@pytest.mark.world_size(2)), or lower the floor"
        )
    ratio = skipped / len(run.tests) if run.tests else 0.0
    if ratio > floors.max_skip_ratio:
        broken.append(
            f"{skipped} of {len(run.tests)} tests were skipped ({ratio:.0%}) and --max-skip-ratio allows "
            f"{floors.max_skip_ratio:.0%}: {_commonest_skip(run.tests)}"
        )
    if floors.expect is not None:
        broken += _missing(floors.expect, ran, {test.test.nodeid for test in run.tests})
    return tuple(broken)


def idle_suites(run: RunResult) -> tuple[str, ...]:
    """Describe each suite whose tests were all skipped: this torch or this machine cannot run it."""
    suites: dict[str, list[TestOutcome]] = {}
    for test in run.tests:
        suites.setdefault(test.test.suite, []).append(test)
    return tuple(
        f"--strict: no test of {name} ran, {len(tests)} were skipped: {_commonest_skip(tests)}"
        for name, tests in suites.items()
        if all(test.final.outcome is Outcome.SKIPPED for test in tests)
    )


def _missing(manifest: Manifest, ran: Iterable[str], collected: Iterable[str]) -> Iterable[str]:
    those_that_ran, all_tests = _named(ran), _named(collected)
    for expectation in manifest.expectations:
        if expectation.names_one_of(those_that_ran):
            continue
        what = "was skipped or not run" if expectation.names_one_of(all_tests) else "does not exist"
        where = f"{manifest.file}:{expectation.line}"
        yield f"{where} expects {expectation.text} to run, and it {what}: run it, or take out the line"


def _commonest_skip(tests: Iterable[TestOutcome]) -> str:
    reasons: dict[str, int] = {}
    for test in tests:
        if test.final.outcome is Outcome.SKIPPED:
            reasons[test.final.message] = reasons.get(test.final.message, 0) + 1
    # The text decides between equal counts, so that equal runs have equal messages.
    reason = max(reasons, key=lambda text: (reasons[text], text))
    return f"most often ({reasons[reason]} times) because {reason or 'no reason was given'}"
