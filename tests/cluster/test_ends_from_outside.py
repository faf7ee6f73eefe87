"""Jobs and their processes that are ended or stopped by others: said so at once, and nothing stays allocated."""

from __future__ import annotations

import signal

import psutil
from cluster_programs import SPAN, assert_lost, waits

from disttest.model import Cause

from .conftest import ClusterLab
from .test_lost_agents import agent_of

SILENCE_S = 60
"""Longer than any of these runs may wait."""


def waiting_run(lab: ClusterLab, silence_s: int = SILENCE_S):
    lab.write(test_waits=waits())
    run = lab.on_slurm("test_waits.py", *SPAN, DISTTEST_SILENCE_LIMIT=str(silence_s))
    run.await_file(lab.folder / "here")
    return run


def number_of(lab: ClusterLab) -> str:
    return lab.cluster.jobs()[0].split()[0]


def test_an_srun_that_is_killed_is_named_and_its_job_is_cancelled(lab: ClusterLab) -> None:
    run = waiting_run(lab)
    below = psutil.Process(run.process.pid).children(recursive=True)
    for each in [each for each in below if each.name() == "srun"]:
        each.send_signal(signal.SIGKILL)

    run.wait()

    assert_lost(run, "srun on the machine that submits was ended by SIGKILL, so the job was cancelled")
    lab.cluster.wait_until_free(30)


def test_an_agent_that_is_killed_is_noticed_before_it_counts_as_silent(lab: ClusterLab) -> None:
    run = waiting_run(lab)
    agent_of(lab.cluster.nodes[1])[0].kill()

    run.wait(SILENCE_S - 10)

    assert_lost(run, "node lost: the agent of node n2 has ended: Killed. The kernel log of the node (dmesg)")
    assert run.result("test_after[4").cause is Cause.INFRASTRUCTURE


def test_a_job_that_is_cancelled_by_hand(lab: ClusterLab) -> None:
    run = waiting_run(lab)
    number = number_of(lab)
    assert 0 == lab.cluster.on_login("scancel", number).returncode

    run.wait()

    assert_lost(run, "cancelled by hand: job ", "was ended by scancel, which this run did not call")


def test_a_job_that_is_suspended(lab: ClusterLab) -> None:
    run = waiting_run(lab, silence_s=15)
    number = number_of(lab)
    done = lab.cluster.on_login("scontrol", "suspend", number)
    assert 0 == done.returncode, done.stderr

    run.wait()

    assert_lost(run, f"held: job {number} is suspended by scontrol suspend", "silent for 15 s")
