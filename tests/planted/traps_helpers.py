"""More programs that look like a deadlock for a while and are none: locks, signals, sockets, pools and second attempts.

How long they look so is ``STRAGGLE_S``, as in ``traps.py``.
"""

import asyncio
import contextlib
import datetime
import fcntl
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from planted import fine
from traps import STRAGGLE_S, after_a_while, store

pytestmark = pytest.mark.timeout(120 + 4 * STRAGGLE_S)
FORK = multiprocessing.get_context("fork")


def sleepily(number):
    """The square of a number, which takes its time."""
    time.sleep(STRAGGLE_S)
    return number * number


# --- another process helps


@fine("helper", size=2)
def test_a_process_sets_a_key_in_a_file(world, world_tmp_path):
    """Anybody who can open the file can end the wait."""
    path = world_tmp_path / "store"
    own = dist.FileStore(str(path), 3)
    own.set(f"here/{world.rank}", "")
    if world.is_first:
        program = f"""
import sys, time
import torch.distributed as dist
time.sleep({STRAGGLE_S})
dist.FileStore(sys.argv[1], 3).set("answer", "42")
"""
        helper = subprocess.Popen([sys.executable, "-c", program, str(path)])
    assert own.get("answer") == b"42"
    if world.is_first:
        assert helper.wait() == 0


@fine("helper", size=2)
def test_a_pool_of_processes_is_slow(world):
    """One rank waits for its pool, the other one for that rank."""
    if world.rank == 1:
        with FORK.Pool(1) as pool:
            assert pool.map(sleepily, [3]) == [9]
    dist.barrier()


@fine("helper", size=2)
def test_a_child_puts_something_into_a_queue(world):
    """A queue of processes is a pipe and a lock."""
    if world.rank == 1:
        results = FORK.SimpleQueue()

        def put():
            results.put(sleepily(2))

        child = FORK.Process(target=put)
        child.start()
        assert results.get() == 4
        child.join()
    dist.barrier()


@fine("helper", size=2)
def test_a_program_is_run_between_two_collectives(world):
    """A compiler, or a download."""
    dist.barrier()
    if world.is_first:
        subprocess.run(["sleep", str(STRAGGLE_S)], check=True)
    dist.barrier()


@fine("helper", size=2)
def test_a_child_sends_a_signal(world):
    """The handler runs when the signal comes, and its rank goes on."""
    if world.rank == 1:
        came = []
        before = signal.signal(signal.SIGUSR1, lambda *_: came.append(True))
        child = subprocess.Popen(["sh", "-c", f"sleep {STRAGGLE_S}; kill -USR1 {os.getpid()}"])
        while not came:
            signal.pause()
        child.wait()
        signal.signal(signal.SIGUSR1, before)
    dist.barrier()


@fine("helper", size=2)
def test_a_signal_is_waited_for(world):
    """It is blocked, and taken by hand."""
    if world.rank == 1:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        child = subprocess.Popen(["sh", "-c", f"sleep {STRAGGLE_S}; kill -USR2 {os.getpid()}"])
        assert signal.sigwait({signal.SIGUSR2}) == signal.SIGUSR2
        child.wait()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    dist.barrier()


# --- ranks meet outside of torch


@fine("outside", size=2)
def test_ranks_share_a_lock_on_a_file(world, world_tmp_path):
    """Who comes second waits until the first one has closed the file."""
    with (world_tmp_path / "lock").open("w") as lock:
        if world.is_first:
            fcntl.flock(lock, fcntl.LOCK_EX)
        dist.barrier()
        if world.is_first:
            time.sleep(STRAGGLE_S)
        else:
            fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_UN)
    dist.barrier()


@fine("outside", size=2)
def test_ranks_talk_over_a_socket(world):
    """One rank listens, the other one calls late."""
    if world.is_first:
        with socket.create_server(("127.0.0.1", 0)) as server:
            store().set("port", str(server.getsockname()[1]))
            connection, _ = server.accept()
            with connection:
                assert connection.recv(2) == b"hi"
    else:
        port = int(store().get("port"))
        time.sleep(STRAGGLE_S)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"hi")
    dist.barrier()


@fine("outside", size=2)
def test_a_rank_looks_for_a_file_now_and_then(world, world_tmp_path):
    """The other rank writes it late and waits for this one."""
    done = world_tmp_path / "done"
    if world.is_first:
        time.sleep(STRAGGLE_S)
        done.touch()
    while not done.exists():
        time.sleep(0.2)
    dist.barrier()


@fine("outside", size=2)
def test_a_named_pipe_is_opened_from_both_ends(world, world_tmp_path):
    """Opening waits for the other end."""
    pipe = world_tmp_path / "pipe"
    if world.is_first:
        os.mkfifo(pipe)
    dist.barrier()
    if world.is_first:
        time.sleep(STRAGGLE_S)
        pipe.write_bytes(b"hi")
    else:
        assert pipe.read_bytes() == b"hi"


# --- second attempts


@fine("time-out", size=2)
def test_a_key_is_asked_for_again_and_again(world):
    """Each attempt gives up, until the other rank has set the key."""
    if world.is_first:
        while True:
            with contextlib.suppress(dist.DistStoreError):
                store().wait(["late"], datetime.timedelta(seconds=STRAGGLE_S / 4))
                break
    else:
        time.sleep(STRAGGLE_S)
        store().set("late", "")
    dist.barrier()


@fine("time-out", size=2)
def test_a_group_is_made_again_after_it_gave_up(world):
    """The first group breaks for want of a partner, the second one works."""
    first = dist.new_group(timeout=datetime.timedelta(seconds=STRAGGLE_S))
    if world.is_first:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1), group=first)
        store().set("gave up", "")
    store().wait(["gave up"])
    dist.all_reduce(torch.ones(1), group=dist.new_group())


@fine("time-out", size=2)
def test_a_handle_is_asked_now_and_then_whether_it_is_done(world):
    """Between two questions the rank sleeps."""
    if world.rank == 1:
        time.sleep(STRAGGLE_S)
    work = dist.barrier(async_op=True)
    while not work.is_completed():
        time.sleep(0.2)


# --- threads


@fine("thread", size=2)
def test_a_collective_runs_in_a_pool_of_threads(world):
    """The main thread waits for the future, and the other rank is late."""
    if world.is_first:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dist.barrier).result()
    else:
        time.sleep(STRAGGLE_S)
        dist.barrier()


@fine("thread", size=2)
def test_an_event_loop_runs_a_collective_beside_a_timer(world):
    """The loop is asleep, and so is the thread that meets the other rank."""

    async def meet():
        await asyncio.gather(asyncio.to_thread(dist.barrier), asyncio.sleep(STRAGGLE_S))

    if world.is_first:
        asyncio.run(meet())
    else:
        time.sleep(STRAGGLE_S)
        dist.barrier()


@fine("thread", size=2)
def test_a_thread_answers_through_a_condition(world):
    """A condition is a lock of Python's."""
    if world.rank == 1:
        condition, ready = threading.Condition(), []

        def answer():
            with condition:
                ready.append(True)
                condition.notify()

        with condition:
            timer = after_a_while(answer)
            condition.wait_for(lambda: ready)
        timer.join()
    dist.barrier()


@fine("thread", size=3)
def test_a_thread_sends_what_comes_through_a_queue(world):
    """The main thread waits at a barrier with all others."""
    if world.rank == 1:
        rows = queue.Queue()
        sender = threading.Thread(target=lambda: dist.send(rows.get(), 0, group=None))
        sender.start()
        timer = after_a_while(lambda: rows.put(torch.ones(1)))
        sender.join()
        timer.join()
    elif world.is_first:
        dist.recv(torch.zeros(1), 1)
    dist.barrier()


@fine("thread", size=2)
def test_a_timer_completes_the_group_for_the_main_thread(world):
    """The main thread has met already, and joins the thread that meets in the other group."""
    group = dist.new_group()
    if world.is_first:
        timer = after_a_while(lambda: dist.barrier(group=group))
        dist.barrier()
        timer.join()
    else:
        dist.barrier(group=group)
        dist.barrier()
