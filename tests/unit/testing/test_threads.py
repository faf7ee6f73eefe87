"""Threads as ranks: with a torch whose own threaded world is not whole, and judged where no host reports them."""

import sys
import threading
import unittest
from functools import partial

import pytest
import torch.distributed as dist
from torch.testing._internal import common_distributed as of_torch
from torch.testing._internal.distributed import multi_threaded_pg as threaded

from disttest.plugins.launching_classes.torch_bases import judge_threads, report_torchs_threads
from disttest.testing import hosting
from disttest.testing.hosting import RanksFailed, report_rank_threads
from disttest.testing.threads import spawn_threads_and_init_comms


def test_groups_are_destroyed_where_torchs_world_lacks_what_that_goes_through(monkeypatch):
    monkeypatch.delattr(threaded.ThreadLocalWorld, "comms", raising=False)  # as in torch 2.11
    seen = []

    @spawn_threads_and_init_comms(world_size=2)
    def body(_self):
        seen.append(dist.get_world_size())

    body(None)

    assert [2, 2] == seen
    assert not dist.is_initialized()


@pytest.fixture(params=["disttest", "torch"])
def decorate(request, monkeypatch):
    """A decorator whose threads are judged by the strict rules; it takes whether they may differ."""
    base = of_torch.MultiThreadedTestCase
    for name in ("_join_threads", "_check_return_codes"):
        monkeypatch.setattr(base, name, vars(base)[name])  # as it was, afterwards
    report_torchs_threads(report_rank_threads)
    theirs = of_torch.spawn_threads_and_init_comms

    def with_judge(body, *, may_differ=False):
        monkeypatch.setattr(hosting, "_judge_threads", partial(judge_threads, may_differ=may_differ))
        spawn = spawn_threads_and_init_comms if request.param == "disttest" else theirs
        return partial(spawn(lambda _self: body(dist.get_rank()), world_size=2), None)

    return with_judge


def leave(rank):
    if rank == 1:
        sys.exit(1)


def interrupt(rank):
    if rank == 1:
        raise KeyboardInterrupt


def skip(rank):
    if rank == 1:
        raise unittest.SkipTest("not me")


def skip_while_the_other_waits(rank):
    skip(rank)
    dist.barrier()


def skip_all(_rank):
    raise unittest.SkipTest("nobody")


def fail(_rank):
    raise ValueError("me")


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (leave, RanksFailed, "rank 1: SystemExit: 1"),
        (interrupt, RanksFailed, "rank 1: KeyboardInterrupt"),
        (skip, RanksFailed, "ranks disagree: rank 0 passed, rank 1 skipped"),
        (skip_while_the_other_waits, unittest.SkipTest, "not me"),
        (skip_all, unittest.SkipTest, "nobody"),
        (fail, RuntimeError, "Thread 0 exited with exception"),
    ],
)
def test_threads_without_a_host_are_judged_as_ranks(decorate, body, error, words):
    with pytest.raises(error, match=words):
        decorate(body)()


def test_threads_of_a_marked_test_may_differ(decorate):
    with pytest.raises(unittest.SkipTest):
        decorate(skip, may_differ=True)()


@pytest.mark.parametrize("raises", [0, 1])
def test_a_thread_that_failed_is_reported_before_one_that_does_not_end(raises):
    over = threading.Event()

    @spawn_threads_and_init_comms(timeout=1, world_size=2)
    def body(_self):
        if dist.get_rank() == raises:
            raise ValueError("the cause")
        over.wait()

    with pytest.raises(
        RuntimeError,
        match=rf"(?s)ValueError: the cause.*Thread {1 - raises} terminated or timed out after 1 s",
    ):
        body(None)
    over.set()
