"""Ranks agree on what an example of hypothesis comes to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from disttest.plugins.hypothesis.examples import Agreement


def agree(*said, store=None):
    store = store or dist.HashStore()
    ranks = [Agreement(store, rank, len(said)) for rank in range(len(said))]
    with ThreadPoolExecutor(len(said)) as pool:
        return list(pool.map(lambda rank, word: rank.agree(word), ranks, said))


@pytest.mark.parametrize(
    ("said", "agreed"),
    [
        (("", ""), ""),
        (("", "assume"), "assume"),
        (("assume", "ValueError at a.py:1"), "rank 1: ValueError at a.py:1"),
        (("ValueError at a.py:1", "KeyError at a.py:2"), "rank 0: ValueError at a.py:1"),
    ],
)
def test_all_ranks_come_to_the_same(said, agreed):
    assert [agreed, agreed] == agree(*said)


def test_a_rank_that_failed_does_not_wait_for_ever():
    assert Agreement(dist.HashStore(), 1, 2, limit_s=0.01).agree("ValueError at a.py:1") is None


def test_one_failure_has_one_type():
    mine = Agreement(dist.HashStore(), 0, 1)

    assert mine.failure("a") is mine.failure("a")
    assert mine.failure("a") is not mine.failure("b")
