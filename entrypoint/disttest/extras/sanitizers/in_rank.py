"""Recorders of the sanitizers in a rank."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence

from disttest import observe
from disttest.extras.sanitizers.choice import Chosen
from disttest.extras.sanitizers.table import SANITIZERS
from disttest.hookspecs import hookimpl
from disttest.runtime.rank.rank_test import RankTest


class Recorders:
    """Recorders that observe each call and report at the end of each test.

    Args:
        chosen: the enabled sanitizers.
        rank: number of this rank.
    """

    def __init__(self, chosen: Sequence[Chosen], rank: int) -> None:
        # A rank without torch calls no collectives and must not pay for the import.
        wanted = chosen if "torch.distributed" in sys.modules else ()
        self._recorders = {
            each.name: SANITIZERS[each.name].make_recorder(rank, each.policy) for each in wanted
        }
        if self._recorders:
            observe.install(*self._recorders.values())

    @hookimpl(wrapper=True)
    def disttest_rank_test(self, test: RankTest) -> Generator[None, bool, bool]:
        """Record a test."""
        for recorder in self._recorders.values():
            recorder.begin()
        result = yield
        for name, recorder in self._recorders.items():
            test.report(name, recorder.report())
        return result
