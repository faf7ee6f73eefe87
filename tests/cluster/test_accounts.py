"""What an account may have, on a real Slurm with a real slurmdbd, and a controller that has as many jobs as it may."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_programs import SPAN, waits
from cluster_run import ClusterRun
from slurm_accounting import accounting_cluster
from slurm_cluster import SlurmCluster, slurm_cluster

from disttest.model import Cause, Outcome, TestResult

from .conftest import ClusterLab

QUICK = """
    def test_quick():
        pass
"""


@pytest.fixture(scope="module")
def shared_accounting() -> Iterator[SlurmCluster]:
    with accounting_cluster() as started:
        yield started


@pytest.fixture
def cluster(shared_accounting: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster of these tests, as it is and should be left."""
    yield shared_accounting
    shared_accounting.wait_until_free()


def test_a_job_is_accounted_to_the_account_that_is_named(lab: ClusterLab) -> None:
    run = lab.write(test_quick=QUICK).on_slurm("test_quick.py", "--account", "free").wait()
    assert run.exit_code == 0, run.output
    assert lab.cluster.on_login("squeue", "-h", "-t", "all", "-o", "%a %T").stdout == "free COMPLETED\n"


def test_an_account_that_does_not_exist(lab: ClusterLab) -> None:
    result = refused(lab, "test_quick", "--account", "nope")
    assert "rejected: " in result.message
    assert "Invalid account or account/partition combination specified" in result.message
    assert "Name an existing account with --account (sacctmgr show associations)" in result.message


def test_more_nodes_than_a_job_of_the_account_may_have(lab: ClusterLab) -> None:
    result = refused(lab, "test_waits[4", *SPAN, "--account", "one-node")
    assert "rejected: Slurm keeps it waiting (AssocMaxNodePerJobLimit)" in result.message
    assert "request fewer (--nodes)" in result.message


def test_a_quality_of_service_that_refuses_what_is_too_large(lab: ClusterLab) -> None:
    """One with the flag DenyOnLimit: without it such jobs wait for ever."""
    result = refused(lab, "test_waits[4", *SPAN, "--account", "free", "--scheduler-args", "--qos=strict")
    assert "rejected: QOSMaxNodePerJobLimit" in result.message
    assert "request fewer (--nodes)" in result.message


def test_an_account_with_all_the_running_jobs_that_it_may_have(lab: ClusterLab) -> None:
    with running_job(lab, "one-job"):
        result = refused(lab, "test_quick", "--account", "one-job", "--queue-limit", "4")
    assert "queued: still waiting after 4 s (AssocGrpJobsLimit)" in result.message


def test_an_account_with_all_the_jobs_in_the_queue_that_it_may_have(lab: ClusterLab) -> None:
    """Slurm refuses more of them; they are asked for again until it takes them."""
    with running_job(lab, "one-at-once"):
        run = refused_for_now(lab)
    run.wait()
    assert run.exit_code == 0, run.output


def test_it_has_them_for_longer_than_a_job_may_wait(lab: ClusterLab) -> None:
    with running_job(lab, "one-at-once"):
        result = refused(lab, "test_quick", "--account", "one-at-once", "--queue-limit", "4")
    assert "queued: still waiting after 4 s (AssocMaxSubmitJobLimit" in result.message


def test_a_run_that_is_cancelled_while_slurm_takes_no_more_jobs(lab: ClusterLab) -> None:
    with running_job(lab, "one-at-once"):
        run = refused_for_now(lab)
        run.process.terminate()
        run.wait(30)
        assert run.exit_code == 143, run.output
        assert len(lab.cluster.jobs()) == 1


def test_a_controller_that_has_as_many_jobs_as_it_may(tmp_path: Path) -> None:
    """With a MaxJobCount of 1 there is no job at all that Slurm 22.05 would take."""
    with slurm_cluster(nodes=1, settings={"MaxJobCount": "1"}) as full:
        lab = ClusterLab(full, tmp_path)
        result = refused(lab, "test_quick", "--queue-limit", "4")
    assert "queued: still waiting after 4 s (Slurm controller not responding, sleeping" in result.message
    assert "Slurm accepts no more jobs now, as at its MaxJobCount" in result.message
    assert "--queue-limit" in result.message


def refused(lab: ClusterLab, test: str, *arguments: str) -> TestResult:
    """What comes of a test whose job does not start: nobody can blame the test."""
    run = lab.write(test_quick=QUICK, test_waits=waits())
    done = run.on_slurm(f"{test.partition('[')[0]}.py", *arguments).wait()
    assert done.exit_code == 7, done.output
    result = done.result(test)
    assert (result.outcome, result.cause) == (Outcome.ERROR, Cause.INFRASTRUCTURE)
    return result


def refused_for_now(lab: ClusterLab) -> ClusterRun:
    """A run that waits until Slurm takes its job; another one of the account is there."""
    run = lab.write(test_quick=QUICK).on_slurm("test_quick.py", "--account", "one-at-once")
    run.await_words(" waits: AssocMaxSubmitJobLimit")
    return run


@contextlib.contextmanager
def running_job(lab: ClusterLab, account: str) -> Iterator[None]:
    """While somebody else's job of the account runs."""
    job = subprocess.Popen(
        lab.cluster.command("srun", "--job-name=other", f"--account={account}", "sleep", "300"),
        env={**os.environ, **lab.cluster.environment()},
        stderr=subprocess.DEVNULL,
    )
    try:
        lab.cluster.wait_until(lambda: any("other RUNNING" in seen for seen in lab.cluster.jobs()))
        yield
    finally:
        job.terminate()
        job.wait(20)
