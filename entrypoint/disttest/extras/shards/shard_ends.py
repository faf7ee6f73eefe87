"""Derive the end of a merged run from the ends of its shards. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from disttest.errors import ExitCode
from disttest.results.conclusion import Conclusion, Facts, conclude, join_exit_codes


class Judged(Protocol):
    """The facts about a test that decide the end of a merged run."""

    @property
    def label(self) -> str:
        """Source of the test; empty if no shard has reported it."""

    @property
    def bad(self) -> bool:
        """Whether it makes the run red."""

    @property
    def infrastructure(self) -> bool:
        """Whether a machine is to blame."""


class ShardEnd(NamedTuple):
    """End of a shard."""

    exit_code: int
    reason: str
    has_concluded: bool = True
    """Whether its journal has a last event; otherwise the exit code is assumed."""
    uncollected: bool = False
    """Whether a file could not be collected."""

    @property
    def is_red(self) -> bool:
        """Whether its exit code makes the run red. A shard that claims to be green is checked against its tests."""
        return self.has_concluded and self.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED)


class ShardEnds:
    """Ends of all shards; the later run of a shard decides."""

    def __init__(self) -> None:
        self._ends: dict[str, ShardEnd] = {}
        self._names: dict[str, str] = {}

    def add(self, name: str, end: ShardEnd, *, label: str = "") -> None:
        """Record the end of a shard; ``label`` names its results among the sources."""
        self._ends[name] = end
        if label:
            self._names[label] = name

    def conclude(self, tests: Iterable[Judged], *, vanished: bool, planned: bool = False) -> Conclusion:
        """Return the gravest end. A shard that did not report its failure is judged by its tests and files.

        Among exit codes, a failed test outweighs a cancelled shard: GitHub cancels the rest of a matrix once one job
        failed.

        Args:
            tests: tests of all shards.
            vanished: whether a planned test no longer exists.
            planned: whether a plan defines what is owed, so that having nothing to run may be right.
        """
        judged = list(tests)
        if not self._ends and not judged:
            return Conclusion(ExitCode.NOTHING_COLLECTED, "no shard had anything to run")
        rest = conclude(self._facts_of_the_rest(judged, empty=not judged and not planned)).exit_code
        is_fine = rest in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED)
        codes = [rest, *(end.exit_code for end in self._ends.values() if end.has_concluded or is_fine)]
        reasons = "; ".join(f"{name}: {end.reason}" for name, end in self._ends.items() if end.reason)
        called = any(end.exit_code != ExitCode.NOTHING_COLLECTED for end in self._ends.values())
        something_ran = vanished or (bool(judged) and called)
        return Conclusion(join_exit_codes(codes, something_ran=something_ran), reasons)

    def _facts_of_the_rest(self, judged: Iterable[Judged], *, empty: bool) -> Facts:
        """Return the facts about shards that died, never reported, or claim to be green."""
        told = {name for name, end in self._ends.items() if end.is_red}
        bad = [test for test in judged if test.bad and self._names.get(test.label) not in told]
        return Facts(
            uncollected=any(end.uncollected for name, end in self._ends.items() if name not in told),
            failed=any(not test.infrastructure for test in bad),
            spoiled=any(test.infrastructure for test in bad),
            empty=empty,
        )
