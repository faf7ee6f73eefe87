"""How the shards of a merge ended, and what the merged run comes to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from disttest.errors import ExitCode
from disttest.results.conclusion import Conclusion, Facts, conclude, join_exit_codes


class Judged(Protocol):
    """What has to be known of a test."""

    @property
    def label(self) -> str:
        """The source that it is from; empty for a test that no shard has reported."""

    @property
    def bad(self) -> bool:
        """Whether it makes the run red."""

    @property
    def infrastructure(self) -> bool:
        """Whether a machine is to blame."""


class ShardEnd(NamedTuple):
    """How a shard ended."""

    exit_code: int
    reason: str
    has_concluded: bool = True
    """Whether its journal has its last word; else its exit code is made up."""
    uncollected: bool = False
    """A file could not be collected."""

    @property
    def is_red(self) -> bool:
        """Whether its own word makes the run red. One that says it is green is checked, not trusted."""
        return self.has_concluded and self.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED)


class ShardEnds:
    """The ends by shard; of one that was run again, the later run decides."""

    def __init__(self) -> None:
        self._ends: dict[str, ShardEnd] = {}
        self._names: dict[str, str] = {}

    def add(self, name: str, end: ShardEnd, *, label: str = "") -> None:
        """A shard ended; ``label`` is that of its results among the sources."""
        self._ends[name] = end
        if label:
            self._names[label] = name

    def conclude(self, tests: Iterable[Judged], *, vanished: bool, planned: bool = False) -> Conclusion:
        """The gravest of what the shards have come to; tests and files of all others speak for themselves.

        Args:
            tests: of all shards.
            vanished: a planned test was not there any more.
            planned: a plan says what is owed, so that nothing to run may be fine.
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
        """What no shard has told of itself: some have died, never reported, or said that they are green."""
        told = {name for name, end in self._ends.items() if end.is_red}
        bad = [test for test in judged if test.bad and self._names.get(test.label) not in told]
        return Facts(
            uncollected=any(end.uncollected for name, end in self._ends.items() if name not in told),
            failed=any(not test.infrastructure for test in bad),
            spoiled=any(test.infrastructure for test in bad),
            empty=empty,
        )
