"""The ends of processes, with real ones."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from disttest.host.descendants import kill_descendants
from disttest.host.process import Exit, adopt_orphans, fork_child, spawn_child


@pytest.mark.slow("forks for a while in several trees")
def test_trees_that_are_spared_may_go_on_forking():
    """A world dies and what it left is killed, while another world starts its ranks."""

    def fork_for_a_while():
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            pid = os.fork()
            if pid == 0:
                time.sleep(0.005)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            if os.WIFSIGNALED(status):
                os._exit(os.WTERMSIG(status))

    adopt_orphans()
    try:
        spared = fork_child(fork_for_a_while)
        while spared.poll() is None:
            left = fork_child(lambda: time.sleep(600))
            # The limit is for what is stuck; a machine that does not get its time may need more than the product's.
            assert () == kill_descendants(spare_trees=[spared.pid], limit_s=60)
            assert not psutil.pid_exists(left.pid)
            left.close()
    finally:
        adopt_orphans(enabled=False)

    assert 0 == spared.poll().code
    spared.close()


def test_a_child_that_was_collected_with_all_descendants_counts_as_killed():
    """The controller ends whatever is left of a run before it closes the child that watches its GPUs."""
    child = spawn_child(["sleep", "600"], new_session=True)

    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)

    assert Exit(signal=signal.SIGKILL) == child.poll()
    child.close()


LOCKS = """
import multiprocessing, time
locks = [multiprocessing.get_context("spawn").Lock() for _ in range(50)]
print(*(lock._semlock.name for lock in locks), flush=True)
"""


def test_what_killed_processes_have_in_shared_memory_goes_with_them():
    """Python's tracker removes it when the last of them has gone."""
    adopt_orphans()
    try:
        program = [sys.executable, "-c", f"{LOCKS}time.sleep(600)"]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as doomed:
            names = doomed.stdout.readline().split()
            assert () == kill_descendants(limit_s=60)
    finally:
        adopt_orphans(enabled=False)

    assert 50 == len(names)
    assert [] == [name for name in names if Path(f"/dev/shm/sem.{name[1:]}").exists()]


KILLS_BESIDE_ITS_TRACKER = """
import subprocess
from multiprocessing.resource_tracker import _resource_tracker as tracker
from disttest.host.descendants import kill_descendants

child = subprocess.Popen(["sleep", "600"])
assert kill_descendants() == () and child.wait() is not None
tracker.register("/mp-not-there", "semaphore")  # warns where it has to start another one
tracker.unregister("/mp-not-there", "semaphore")
"""


def test_the_tracker_of_the_process_that_kills_lives_on():
    program = [sys.executable, "-c", LOCKS + KILLS_BESIDE_ITS_TRACKER]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)

    assert ("", 0) == (done.stderr, done.returncode)
    assert [] == [name for name in done.stdout.split() if Path(f"/dev/shm/sem.{name[1:]}").exists()]
