"""Deaths of ranks after their last test: which of them count."""

from types import SimpleNamespace

import pytest

from disttest.runtime.messages.protocol import TestDone
from disttest.runtime.world.dismissal import late_deaths


def found(*, healthy, failed=False, killed=(), torn_down=(0, 1), badly=(1,), stuck=(), done=(0, 1)):
    """The ranks whose death counts, of two."""
    progress = [
        SimpleNamespace(
            killed=rank in killed, torn_down=rank in torn_down, done=TestDone() if rank in done else None
        )
        for rank in range(2)
    ]
    attempt = SimpleNamespace(failed_s=1.0 if failed else None, ranks=progress, of=progress.__getitem__)
    handles = [
        SimpleNamespace(rank=rank, child=SimpleNamespace(ended_badly=rank in badly)) for rank in range(2)
    ]
    ranks = SimpleNamespace(handles=handles)
    return [each.rank for each in late_deaths(ranks, attempt, frozenset(stuck), healthy=healthy)]


def test_a_rank_that_dies_at_its_exit_counts_if_its_world_was_well():
    assert [1] == found(healthy=True)
    assert [] == found(healthy=False)


@pytest.mark.parametrize("failed", [False, True])
def test_a_rank_that_dies_in_its_fixtures_counts_in_a_broken_world_too(failed):
    assert [1] == found(healthy=False, failed=failed, torn_down=(0,))


def test_a_rank_that_died_in_its_test_is_not_late():
    assert [] == found(healthy=False, torn_down=(0,), done=(0,))


def test_the_victims_of_a_rank_that_was_ended_do_not_count():
    assert [] == found(healthy=False, failed=True, killed=(0,), torn_down=())
    assert [] == found(healthy=True, stuck=(1,))
