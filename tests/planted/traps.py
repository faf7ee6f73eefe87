"""Programs that look like a deadlock for a while and are none: all pass, and nothing may be said of them.

How long they look so is ``PLANTED_STRAGGLE_S``: longer than a proof takes by default, a minute in the full run.
"""

import asyncio
import ctypes
import datetime
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from planted import fine
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STRAGGLE_S = float(os.environ.get("PLANTED_STRAGGLE_S", "2"))
pytestmark = pytest.mark.timeout(120 + 4 * STRAGGLE_S)

SETS_A_KEY = """
import sys, time
import torch.distributed as dist
host, port, prefix, delay = sys.argv[1:]
store = dist.PrefixStore(prefix, dist.TCPStore(host, int(port), is_master=False))
time.sleep(float(delay))
store.set("answer", "42")
"""


def store():
    """The store that the ranks have met at."""
    return dist.distributed_c10d._get_default_store()


def impatient_group():
    """A group of everybody that gives up when a straggler is through."""
    return dist.new_group(timeout=datetime.timedelta(seconds=STRAGGLE_S))


def after_a_while(action):
    """A thread that does it when everybody has waited for long."""
    thread = threading.Timer(STRAGGLE_S, action)
    thread.start()
    return thread


@fine("straggler", size=2)
def test_a_straggler_sleeps(world):
    if world.rank == 1:
        time.sleep(STRAGGLE_S)
    dist.barrier()


@fine("straggler", size=3)
def test_a_sender_comes_late(world):
    if world.rank == 0:
        time.sleep(STRAGGLE_S)
        dist.send(torch.ones(1), 1)
    elif world.rank == 1:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.ones(1), 2)
    else:
        dist.recv(torch.ones(1), 1)


@fine("straggler", size=2)
def test_a_straggler_sleeps_in_c(world):
    if world.rank == 1:
        ctypes.CDLL(None).sleep(max(1, int(STRAGGLE_S)))
    dist.barrier()


@fine("straggler", size=2)
def test_a_straggler_computes(world):
    if world.rank == 1:
        until_s = time.monotonic() + STRAGGLE_S
        x = torch.ones(64, 64)
        while time.monotonic() < until_s:
            x = (x @ x).clamp(max=1)
    dist.barrier()


@fine("straggler", size=2)
def test_a_straggler_runs_an_event_loop(world):
    if world.rank == 1:
        asyncio.run(asyncio.sleep(STRAGGLE_S))
    dist.barrier()


@pytest.fixture
def barrier_when_torn_down(world):
    """The last rank meets the others in its tear-down only."""
    yield
    if world.rank == 1:
        time.sleep(STRAGGLE_S)
        dist.barrier()


@fine("straggler", size=2)
def test_the_other_rank_meets_in_its_tear_down(world, barrier_when_torn_down):
    if world.is_first:
        dist.barrier()


@fine("time-out", size=2)
def test_a_group_gives_up_before_the_test(world):
    group = impatient_group()
    if world.is_first:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1), group=group)
    store().set(f"through/{world.rank}", "")
    store().wait(["through/0", "through/1"])


@fine("time-out", size=2)
def test_a_handle_is_awaited_for_a_while(world):
    group = dist.new_group()
    if world.is_first:
        work = dist.irecv(torch.ones(1), 1, group=group)
        with pytest.raises(RuntimeError):
            work.wait(datetime.timedelta(seconds=STRAGGLE_S))
    dist.barrier()


@fine("time-out", size=2)
def test_a_key_is_awaited_for_a_while(world):
    if world.is_first:
        with pytest.raises(dist.DistStoreError):
            store().wait(["never"], datetime.timedelta(seconds=STRAGGLE_S))
    dist.barrier()


@fine("time-out", size=2)
def test_a_monitored_barrier_names_who_is_missing(world):
    group = dist.new_group()  # broken by this
    if world.is_first:
        with pytest.raises(RuntimeError):
            dist.monitored_barrier(group, timeout=datetime.timedelta(seconds=STRAGGLE_S))
        store().set("judged", "")
    store().wait(["judged"])


@fine("time-out", size=2)
@pytest.mark.xfail(raises=RuntimeError, strict=True)
def test_a_time_out_is_the_expected_failure(world):
    group = impatient_group()
    dist.recv(torch.ones(1), 1 - world.rank, group=group)


@fine("helper", size=2)
def test_a_thread_of_the_test_sets_the_key(world):
    if world.is_first:
        own = store().clone()  # a client does one thing at a time
        timer = after_a_while(lambda: own.set("rescue", ""))
        store().wait(["rescue"])
        timer.join()
    dist.barrier()


@fine("helper", size=2)
def test_a_thread_of_the_test_sends(world):
    if world.is_first:
        dist.recv(torch.ones(1), 1)
    else:
        timer = after_a_while(lambda: dist.send(torch.ones(1), 0))
        timer.join()


@fine("helper", size=2)
def test_a_thread_completes_a_future(world):
    if world.is_first:
        future = torch.futures.Future()
        timer = after_a_while(lambda: future.set_result(1))
        assert future.wait() == 1
        timer.join()
    dist.barrier()


@fine("helper", size=2)
def test_another_process_sets_the_key(world):
    if world.is_first:
        # The world's store has a prefix for its tests, so the helper meets at a store of its own.
        own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        helper = subprocess.Popen(
            [sys.executable, "-c", SETS_A_KEY, "127.0.0.1", str(own.port), "p", str(STRAGGLE_S)]
        )
        assert dist.PrefixStore("p", own).get("answer") == b"42"
        assert helper.wait() == 0
    dist.barrier()


@fine("helper", size=2)
def test_a_child_answers_over_a_pipe(world):
    if world.rank == 1:
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        child = subprocess.Popen(["sh", "-c", f"sleep {STRAGGLE_S}; echo"], stdout=theirs.fileno())
        select.select([ours], [], [])
        child.wait()
    dist.barrier()


class SlowRows(torch.utils.data.Dataset):
    """Two rows; a worker process takes its time for each."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        time.sleep(STRAGGLE_S / 2)
        return torch.ones(1)


@fine("helper", size=2)
def test_a_loader_is_slow(world):
    if world.rank == 1:
        rows = torch.utils.data.DataLoader(SlowRows(), num_workers=1, multiprocessing_context="fork")
        assert len(list(rows)) == 2
    dist.barrier()


@fine("handler", size=2)
def test_an_alarm_rings(world):
    if world.rank == 1:
        before = signal.signal(signal.SIGALRM, lambda *_: dist.send(torch.ones(1), 0))
        signal.setitimer(signal.ITIMER_REAL, STRAGGLE_S)
        signal.pause()
        signal.signal(signal.SIGALRM, before)
    else:
        dist.recv(torch.ones(1), 1)


@fine("handler", size=2)
def test_a_gradient_hook_sleeps_and_sends(world):
    if world.rank == 1:

        def hook(gradient):
            time.sleep(STRAGGLE_S)
            dist.send(gradient, 0)

        x = torch.ones(4, requires_grad=True)
        x.register_hook(hook)
        (x * 2).sum().backward()
    else:
        dist.recv(torch.ones(4), 1)


@fine("handler", size=2)
def test_a_communication_hook_is_slow(world):
    def hook(group, bucket):
        if world.rank == 1:
            time.sleep(STRAGGLE_S)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    model = DistributedDataParallel(nn.Linear(4, 4))
    model.register_comm_hook(None, hook)
    model(torch.ones(2, 4)).sum().backward()


@fine("slow", size=2)
def test_much_to_send(world):
    x = torch.ones(8 << 20)
    until_s = time.monotonic() + STRAGGLE_S
    enough = torch.zeros(1)
    while not enough:
        dist.all_reduce(x, dist.ReduceOp.MAX)
        enough[0] = time.monotonic() > until_s
        dist.broadcast(enough, 0)


@fine("slow", size=2)
def test_one_rank_compiles(world):
    if world.rank == 1:
        compiled = torch.compile(lambda x: torch.sin(x) + x.cos(), backend="aot_eager")
        compiled(torch.ones(4))
        time.sleep(STRAGGLE_S / 2)
    dist.barrier()
