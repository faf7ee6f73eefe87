"""The ends of processes, with real ones."""

import os
import time

import psutil

from disttest.host.process import adopt_orphans, fork_child, kill_descendants


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
            kill_descendants(spare_trees=[spared.pid])
            assert not psutil.pid_exists(left.pid)
            left.close()
    finally:
        adopt_orphans(enabled=False)

    assert 0 == spared.poll().code
    spared.close()
