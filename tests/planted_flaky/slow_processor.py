"""Tests that assume that their process gets a processor soon."""

import subprocess
import sys
import threading
import time

import pytest

WORK_S = 0.1
LIMIT_S = 0.4


def work() -> None:
    end = time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass


def elapsed(call) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_duration():
    assert elapsed(work) < LIMIT_S


@pytest.mark.world_size(1)
def test_duration_in_a_rank(world):
    assert elapsed(work) < LIMIT_S


def test_thread_is_done():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_child_answers():
    code = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-S", "-c", code], check=True, timeout=LIMIT_S + 0.3)


def test_heart_beats():
    beats = []
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.005):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    work()
    stop.set()
    thread.join()
    assert beats and beats[-1] - beats[0] < LIMIT_S
