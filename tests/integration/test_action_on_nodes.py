"""The action on a runner that submits: Slurm's commands are a stub that starts the tasks of a job on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from github_expressions import evaluator
from github_runner import ActionResult, Runner
from lab import Lab

from disttest.extras.cluster.protocol.job import this_machine
from disttest.model import Outcome
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, read_events

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "tests" / "support" / "slurm_stub" / "stub.py"
TESTS = """
    import os
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_spans(world):
        dist.barrier()
        assert os.environ["GROUP_RANK"] == str(world.rank)
"""
DEAD = f"disttest-{this_machine()}-999999999-t1-j1"
ELSEWHERE = "disttest-0000000000-1-t1-j1"


@pytest.fixture(scope="module", autouse=True)
def expressions():
    """What evaluates them lives as long as this process: it is no leftover of a job."""
    evaluator()


class Job:
    """A job of a workflow on a runner that has Slurm's commands, and disttest if it is installed there."""

    def __init__(self, lab: Lab, *, installed: bool = True) -> None:
        self.lab = lab
        self.log = lab.folder / "asked"
        self.log.touch()
        bin_folder = lab.folder / "bin"
        bin_folder.mkdir()
        for name in ("srun", "sinfo", "squeue", "scontrol", "scancel"):
            (bin_folder / name).symlink_to(STUB)
        if installed:
            command = bin_folder / "disttest"
            command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m disttest "$@"\n')
            command.chmod(0o755)
        environment = {name: value for name, value in lab.environ.items() if not name.startswith("GITHUB_")}
        path = f"{bin_folder}:{Path(sys.executable).parent if installed else '/usr/bin'}:/usr/bin:/bin"
        environment |= {"PATH": path, "STUB_LOG": str(self.log), "STUB_QUEUE": f"{DEAD} {ELSEWHERE} other"}
        self.runner = Runner(lab.folder, lab.folder, environment)

    def run(self, **inputs: str) -> ActionResult:
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        return self.runner.run_action(ROOT, {"launcher": "slurm", **given})

    def asked(self, command: str) -> list[list[str]]:
        """Command lines that the scheduler got."""
        lines = map(json.loads, self.log.read_text().splitlines())
        return [words for name, *words in lines if name == command]


@pytest.fixture
def job(lab: Lab) -> Job:
    return Job(lab)


@pytest.mark.slow("each step of the action starts processes, and each node another one")
def test_inputs_of_the_action_submit_and_the_last_step_cleans(job: Job) -> None:
    job.lab.write(test_nodes=TESTS)
    done = job.run(
        suite="test_nodes.py",
        nodes="2",
        partition="gpu",
        scheduler_args="--qos=ci",
        world_sizes="2",
        device="cpu",
    )

    assert done.exit_code == 0, done.log
    assert (done.outputs["conclusion"], done.outputs["tests"]) == ("success", "1")
    run = fold(read_events(job.lab.folder / "results" / FILE_NAME))
    (test,) = run.tests
    assert test.final.outcome is Outcome.PASSED
    assert ["stub0", "stub1"] == [rank.node for rank in test.final.ranks]
    (submitted,) = [words for words in job.asked("srun") if words != ["--version"]]
    assert {"--nodes=2", "--partition=gpu", "--qos=ci"} <= set(submitted)
    assert done.steps["clean"].outcome == "success"
    # Before the run, and after it; what lives elsewhere, or is none of ours, is left alone.
    assert [f"--name={DEAD}"] * 2 == [words[-1] for words in job.asked("scancel")]
    assert f"cancelled {DEAD}" in done.steps["clean"].log


def test_the_last_step_cleans_after_a_step_that_failed(job: Job) -> None:
    done = job.run(suite="nowhere.py")

    assert done.exit_code == 4, done.log
    assert done.steps["clean"].outcome == "success"
    assert [f"--name={DEAD}"] == [words[-1] for words in job.asked("scancel")]


def test_the_last_step_cleans_where_the_run_was(job: Job) -> None:
    kubectl = job.lab.folder / "bin" / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$*" >> "{job.lab.folder}/kubectl.log"\necho \'{{"items": []}}\'\n')
    kubectl.chmod(0o755)

    done = job.run(suite="nowhere.py", launcher="kubernetes", partition="kind/ci", image="of/tests")

    assert done.steps["clean"].outcome == "success", done.log
    asked = (job.lab.folder / "kubectl.log").read_text().splitlines()
    assert [] == [line for line in asked if "--context=kind --namespace=ci" not in line]


def test_without_a_launcher_there_is_nothing_to_clean(job: Job) -> None:
    done = job.run(suite="nowhere.py", launcher="")

    assert done.exit_code == 4, done.log
    assert done.steps["clean"].outcome == "skipped"
    assert job.asked("scancel") == []


def test_a_runner_without_disttest_says_what_it_needs(lab: Lab) -> None:
    job = Job(lab, installed=False)
    assert not any(
        os.access(f"{folder}/disttest", os.X_OK) for folder in job.runner.environment["PATH"].split(":")
    )

    done = job.run(suite="ddp")

    assert done.exit_code == 4
    assert "input launcher: the scheduler is reached from the runner itself" in done.log
    assert done.steps["clean"].outcome == "skipped"
