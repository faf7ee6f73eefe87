"""What is known of the processes below a contained test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disttest.plugins.contain.isolated import _MOST_NAMED, Descendants

_WAITS = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def child():
    process = subprocess.Popen(
        [sys.executable, "-c", _WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"RANK": "3"}
    )
    assert process.stdout is not None
    assert b"up\n" == process.stdout.readline()  # while a process is being replaced it has no command line
    with process:
        yield process
        process.kill()


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end without collecting it, as a parent does that waits for something else."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def _look(below: Descendants, process: subprocess.Popen[bytes]) -> list[str]:
    """What is news of this child: earlier tests may have left others to this process."""
    return [said for said in below.look() if said.startswith(f"process {process.pid} ")]


def test_a_death_that_nobody_waits_for_is_told_once_and_with_the_rank(child: subprocess.Popen[bytes]) -> None:
    below = Descendants(os.getpid())

    assert [] == _look(below, child)
    os.kill(child.pid, signal.SIGKILL)
    _await_end(child)

    (said,) = _look(below, child)
    assert said.startswith(f"process {child.pid} (rank 3, {Path(sys.executable).name} -c import sys;")
    assert said.endswith("was killed by SIGKILL, and the test did not wait for it")
    assert [] == _look(below, child)


def test_an_orderly_end_is_no_death(child: subprocess.Popen[bytes]) -> None:
    below = Descendants(os.getpid())
    below.look()
    child.stdin.close()
    _await_end(child)

    assert [] == _look(below, child)


def test_one_without_our_handler_is_named_and_not_signalled(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "stacks").touch()
    (found,) = [each for each in Descendants(os.getpid()).ask(tmp_path / "stacks") if each.pid == child.pid]

    assert "rank 3" == found.role
    assert "" == found.stacks
    assert child.poll() is None


def test_the_dead_take_no_place_of_the_living(tmp_path: Path) -> None:
    many = f"for _ in range({_MOST_NAMED}): os.waitid(os.P_PID, os.fork() or os._exit(0), os.WEXITED | os.WNOWAIT)"
    program = f"import os, subprocess, sys\n{many}\nlast = subprocess.Popen(['cat'])\nprint(last.pid, flush=True)\nlast.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        living = int(parent.stdout.readline())

        assert f"process {living} (cat)" in map(str, Descendants(parent.pid).ask(tmp_path / "stacks"))
        parent.stdin.close()


def test_the_tracker_of_multiprocessing_is_not_told_however_long_its_path(tmp_path: Path) -> None:
    folder = tmp_path / ("a-long-name-" * 8)
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    tracks = "from multiprocessing.resource_tracker import main;print('up', flush=True);main(0)"
    with subprocess.Popen(
        [str(folder / "python"), "-c", tracks], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as tracker:
        assert tracker.stdout is not None
        assert b"up\n" == tracker.stdout.readline()

        assert tracker.pid not in [each.pid for each in Descendants(os.getpid()).ask(tmp_path / "stacks")]
        tracker.kill()
