"""The ends of processes, with real ones."""

import os
import signal
import time

import psutil

from disttest.host.descendants import kill_descendants
from disttest.host.process import Exit, adopt_orphans, fork_child, spawn_child


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
