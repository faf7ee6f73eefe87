"""Programs over NCCL that look like a deadlock for a while and are none: all pass, and nothing may be said of them.

They need a GPU for each rank. How long they look so is ``PLANTED_STRAGGLE_S``.
"""

import os
import threading
import time

import torch
import torch.distributed as dist
from planted import fine

STRAGGLE_S = float(os.environ.get("PLANTED_STRAGGLE_S", "2"))


def ones(world):
    return torch.ones(4, device=world.device)


@fine("straggler", size=2)
def test_a_rank_comes_late(world):
    numbers = ones(world)
    if world.is_first:
        time.sleep(STRAGGLE_S)
    dist.all_reduce(numbers)
    assert numbers[0].item() == 2


@fine("straggler", size=2)
def test_a_rank_computes_for_long(world):
    numbers = ones(world)
    until_s = time.monotonic() + STRAGGLE_S
    while world.is_first and time.monotonic() < until_s:
        torch.ones(100).sum()
    dist.all_reduce(numbers)
    assert numbers[0].item() == 2


@fine("thread", size=2)
def test_a_thread_makes_the_call_that_all_gpus_wait_for(world):
    first, second = dist.new_group(), dist.new_group()
    numbers, others = ones(world), ones(world)
    late, own = (first, second) if world.is_first else (second, first)
    stream = torch.cuda.Stream()

    def join():
        with torch.cuda.stream(stream):
            dist.all_reduce(others, group=late)

    thread = threading.Timer(STRAGGLE_S, join)
    thread.start()
    dist.all_reduce(numbers, group=own)
    assert numbers.cpu()[0] == 2
    thread.join()
    torch.cuda.synchronize()
    assert others[0].item() == 2


@fine("sender", size=2)
def test_what_is_sent_needs_nobody_yet(world):
    numbers = ones(world)
    dist.all_reduce(numbers)
    if world.is_first:
        dist.send(numbers, 1)
        torch.cuda.synchronize()
        dist.all_reduce(numbers)
    else:
        time.sleep(STRAGGLE_S)
        dist.recv(numbers, 0)
        dist.all_reduce(numbers)
    assert numbers[0].item() == 4


@fine("unwaited", size=2)
def test_a_handle_that_the_numbers_do_not_wait_for(world):
    numbers, others = ones(world), ones(world)
    torch.cuda.synchronize()
    if world.is_first:
        work = dist.all_reduce(numbers, async_op=True)
        assert others.cpu()[0] == 1  # nothing but this is in the stream
        time.sleep(STRAGGLE_S)
        work.wait()
    else:
        time.sleep(STRAGGLE_S)
        dist.all_reduce(numbers)
    assert numbers[0].item() == 2


@fine("store", size=2)
def test_a_key_comes_late(world):
    store = dist.distributed_c10d._get_default_store()
    numbers = ones(world)
    if world.is_first:
        time.sleep(STRAGGLE_S)
        store.set("late", "1")
    else:
        store.wait(["late"])
    dist.all_reduce(numbers)
    assert numbers[0].item() == 2
