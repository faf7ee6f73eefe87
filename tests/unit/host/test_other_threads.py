"""Threads are named by what they run, and those that a fork can do without are told apart."""

import sys
import threading
import types

import pytest

from disttest.host import fork_hazard
from disttest.host.fork_hazard import name_threads
from disttest.host.other_threads import OtherThread, end_helpers, thread_ids, threads
from disttest.runtime.controller.hazards import Hazards


@pytest.fixture
def waiting():
    """A thread of this process that waits; ended with the test."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="at-import")
    thread.start()
    yield thread
    stop.set()
    thread.join()


def test_a_thread_of_python_has_its_name_and_function(waiting):
    found = next(thread for thread in threads() if thread.tid == waiting.native_id)

    assert "at-import of threading.Event.wait" == str(found)
    assert not found.safe_to_fork_beside
    assert waiting.native_id in thread_ids()


@pytest.mark.parametrize(
    ("runs", "is_python", "safe"),
    [
        ("libscipy_openblas64_-32a4b2a6.so", False, True),
        ("libopenblas.so.0", False, True),
        ("libcuda.so.580.159.04", False, True),
        ("libcudart.so.13", False, False),
        ("libgomp.so.1", False, False),
        ("libtorch_cpu.so", False, False),
        ("", False, False),
        ("pytest_rerunfailures.ServerStatusDB.run_server", True, True),
        ("mine.openblas", True, False),
    ],
)
def test_which_a_fork_can_do_without(runs, is_python, safe):
    assert safe is OtherThread(tid=1, name="python", runs=runs, is_python=is_python).safe_to_fork_beside


@pytest.mark.parametrize(
    ("runs", "is_python", "like_new"),
    [
        ("libcuda.so.580.159.04", False, False),
        ("libscipy_openblas64_-32a4b2a6.so", False, True),
        ("wait", True, False),
    ],
)
def test_where_the_driver_has_begun_no_fork_asks_it(monkeypatch, runs, is_python, like_new):
    found = (OtherThread(tid=1, name="python", runs=runs, is_python=is_python),)
    monkeypatch.setattr(fork_hazard, "threads", lambda: found)

    assert like_new is fork_hazard.forks_are_like_new()


def test_threads_of_gloo_count_while_this_process_is_in_a_group(monkeypatch):
    groups = types.ModuleType("torch.distributed.distributed_c10d")
    groups._world = types.SimpleNamespace(pg_map={"a group": None})
    monkeypatch.setitem(sys.modules, groups.__name__, groups)
    of_gloo = [
        OtherThread(tid=1, name=name, runs="libc10.so") for name in ("gloo_tcp_loop", "pt_gloo_runloop")
    ]
    same_name = OtherThread(tid=1, name="gloo_tcp_loop", runs="mine.wait", is_python=True)

    assert [False, False] == [thread.safe_to_fork_beside for thread in of_gloo]
    groups._world.pg_map.clear()
    assert [True, True] == [thread.safe_to_fork_beside for thread in of_gloo]
    assert not same_name.safe_to_fork_beside


def test_many_threads_are_named_once_each():
    pool = [OtherThread(tid=number, name="python", runs="libgomp.so.1") for number in range(9)]
    others = [OtherThread(tid=number, name=f"n{number}", runs="") for number in range(5)]

    assert "9 threads (python of libgomp.so.1)" == name_threads(pool)
    assert "14 threads (python of libgomp.so.1, n0, n1, n2, 2 more)" == name_threads(pool + others)


def test_the_monitor_of_tqdm_is_ended(monkeypatch):
    class Monitor(threading.Thread):
        def __init__(self):
            super().__init__(daemon=True)
            self.was_killed = threading.Event()
            self.start()

        def run(self):
            self.was_killed.wait()

        def exit(self):
            self.was_killed.set()
            self.join()

    monitor, std = Monitor(), types.ModuleType("tqdm.std")
    std.tqdm = type("tqdm", (), {"monitor": monitor})
    monkeypatch.setitem(sys.modules, "tqdm.std", std)

    end_helpers()

    assert not monitor.is_alive()


def test_hazards_are_false_where_there_are_none():
    assert not Hazards()
    both = Hazards(
        by_file={"/x/test_a.py": "test_a.py starts 1 thread (a)"}, elsewhere="CUDA was initialised"
    )
    assert both
    assert "CUDA was initialised; test_a.py starts 1 thread (a)" == str(both)
