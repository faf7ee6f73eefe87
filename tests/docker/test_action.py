"""The composite action, executed as GitHub's runner would, with the real engine behind it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest
from engine import ROOT, docker_command
from junitparser import JUnitXml
from launched_job import Job, put_on_path
from launching import ours
from thorough import is_wanted

from disttest.errors import UsageError
from disttest.extras.github_action.step import INPUTS, step_arguments

HOSTILE = "$(touch hacked) `touch hacked`; touch hacked\n\"'${{ github.token }} && touch hacked"
WRITES_OUTPUTS = """
import json, os, sys
with open(os.environ["GITHUB_OUTPUT"], "a") as file:
    print("tests=3", file=file)
    print("failed-tests<<END", json.dumps(sys.argv[1:]), "END", sep="\\n", file=file)
with open(os.environ["GITHUB_STEP_SUMMARY"], "a") as file:
    print("# All is well", file=file)
print("flags", os.environ["PROBE_FLAGS"])
"""
RUNS_UNTIL_STOPPED = """
import pathlib, signal, sys, time
def leave(signum, frame):
    pathlib.Path("report").write_text(f"stopped by {signum}")
    sys.exit(130)
signal.signal(signal.SIGINT, leave)
pathlib.Path("ready").touch()
time.sleep(120)
"""


def test_outputs_and_summary_of_a_launched_run(job: Job) -> None:
    done = job.run(
        suite=job.script(WRITES_OUTPUTS),
        world_sizes="2,4",
        pytest_args="-k 'a and not b' \"c\"",
        results="out",
    )
    assert done.exit_code == 0, done.log
    assert done.outputs["tests"] == "3"
    assert json.loads(done.outputs["failed-tests"]) == ["--", "-k", "a and not b", "c"]
    assert done.summary == "# All is well\n"
    assert 'flags ["run", "--world-sizes=2,4"]' in done.log
    assert (job.workspace / "out").stat().st_uid == job.workspace.stat().st_uid


def test_paths_are_relative_to_the_working_directory(job: Job) -> None:
    sub = job.workspace / "sub"
    sub.mkdir()
    os.chown(sub, job.workspace.stat().st_uid, job.workspace.stat().st_gid)
    (sub / "here.py").write_text("import os; print('in', os.getcwd())")
    done = job.run(suite="here.py", working_directory="sub", results="out")
    assert done.exit_code == 0, done.log
    assert f"in {sub}" in done.log
    assert (sub / "out").is_dir()


def test_the_exit_code_of_the_run_is_the_steps(job: Job) -> None:
    done = job.run(suite=job.script("raise SystemExit(1)"))
    assert (done.exit_code, done.conclusion) == (1, "failure")


def test_cancelling_interrupts_the_tests_and_leaves_nothing(job: Job) -> None:
    ready = job.workspace / "ready"
    done = job.run(suite=job.script(RUNS_UNTIL_STOPPED), cancel_when=ready.exists)
    # The runner's KILL, which would be 137 or -9, was not needed.
    assert done.exit_code == 130, done.log
    assert (job.workspace / "report").read_text() == "stopped by 2"
    assert ours(job.engine) == []


def test_an_engine_that_is_down_is_infrastructure(job: Job, tmp_path: Path) -> None:
    job.runner.environment["DOCKER_HOST"] = f"unix://{tmp_path}/none.sock"
    done = job.run(suite="ddp")
    assert done.exit_code == 8
    assert done.outputs["infrastructure"] == "true"
    assert done.outputs["conclusion"] == "infrastructure"
    assert "[engine-gone]" in done.log


def test_a_request_that_makes_no_sense_is_not_infrastructure(job: Job) -> None:
    done = job.run(suite="")
    assert done.exit_code == 4
    assert (done.outputs["infrastructure"], done.outputs["conclusion"]) == ("false", "error")
    assert "input suite is empty" in done.log


def test_in_place_where_disttest_is_installed(job: Job, tmp_path: Path) -> None:
    put_on_path(job, tmp_path / "bin")
    done = job.run(suite="program.py", seed="3", pytest_args="-x", image="")
    assert done.exit_code == 0, done.log
    assert done.steps["environment"].outcome == "skipped"
    assert done.log.splitlines()[-1] == "in place: github-step in-place"


TESTS = """
import pathlib, time, pytest

@pytest.mark.world_size(2)
def test_first(world):
    pass

@pytest.mark.world_size(2)
def test_second(world):
    if {hangs}:
        pathlib.Path("ready").touch()
        time.sleep(120)
"""


def test_in_place_cancelling_interrupts_the_tests_and_leaves_their_reports(job: Job, tmp_path: Path) -> None:
    real = f'exec "{sys.executable}" -m disttest "$@"'
    put_on_path(job, tmp_path / "bin", f'PYTHONPATH="{ROOT / "entrypoint"}" {real}')
    (job.workspace / "test_it.py").write_text(TESTS.format(hangs=True))
    done = job.run(suite="test_it.py", image="", cancel_when=(job.workspace / "ready").exists)

    assert done.exit_code == 130, done.log
    cases = JUnitXml.fromfile(str(job.workspace / "results" / "junit.xml"))
    assert (cases.tests, cases.errors) == (2, 1)
    assert done.outputs["conclusion"] == "cancelled", done.outputs
    assert "cancelled by SIGINT" in done.summary


def test_the_docker_action_runs_in_its_own_container(job: Job, image: str) -> None:
    (job.workspace / "test_it.py").write_text(TESTS.format(hangs=False))
    done = job.runner.run_docker_action(
        ROOT / "actions" / "docker",
        {"suite": "test_it.py", "pytest-args": "-k 'first or $(touch hacked)'"},
        docker=[docker_command()],
        image=image,
    )

    assert done.exit_code == 4, done.log  # pytest refuses the expression, and no shell has seen it
    assert not (job.workspace / "hacked").exists()
    done = job.runner.run_docker_action(
        ROOT / "actions" / "docker", {"suite": "test_it.py"}, docker=[docker_command()], image=image
    )
    assert done.exit_code == 0, done.log
    assert (done.outputs["conclusion"], done.outputs["tests"]) == ("success", "2"), done.outputs
    assert "2 passed" in done.summary
    # The next steps start in the workspace, which they see under another path.
    assert done.outputs["junit"] == "results/junit.xml"
    assert (job.workspace / done.outputs["junit"]).exists()
    written = [job.workspace / "results", *(job.workspace / "results").rglob("*")]
    assert {path.lstat().st_uid for path in written} == {job.workspace.stat().st_uid}


def test_never_in_place(job: Job, tmp_path: Path) -> None:
    put_on_path(job, tmp_path / "bin")
    done = job.run(suite=job.script("print('inside')"), in_place="never")
    assert done.exit_code == 0, done.log
    assert "inside" in done.log


@pytest.mark.parametrize(
    ("choice", "message"), [("always", "disttest is not installed here"), ("perhaps", "is not auto, always")]
)
def test_in_place_refused(job: Job, choice: str, message: str) -> None:
    job.runner.environment["PATH"] = "/usr/bin:/bin"
    done = job.run(suite="ddp", in_place=choice)
    assert done.exit_code == 4
    assert message in done.log
    assert {step.outcome for step in list(done.steps.values())[1:]} == {"skipped"}


def reach_the_container() -> list[str]:
    """Inputs whose hostile text neither the step nor ``disttest launch`` reads: it is a flag of the command inside."""
    found = []
    for one in INPUTS["run"]:
        with contextlib.suppress(UsageError):
            words = step_arguments("run", {"suite": "program.py", one.name: HOSTILE}, in_place=False)
            if f"--{one.name}={HOSTILE}" in words[words.index("run") :]:
                found.append(one.name)
    return found


def test_hostile_text_in_any_input_is_text(job: Job) -> None:
    program = job.script("import sys, json; print('argv', json.dumps(sys.argv[1:]))")
    before = snapshot(job.workspace)
    elsewhere = reach_the_container()
    names = [one.name for one in INPUTS["run"] if one.name not in elsewhere]
    # All go through the same scripts; tests/unit/github_action/test_action_inputs.py has the text in each of them.
    for name in names if is_wanted() else names[::4]:
        done = job.run(**{"suite": program, name.replace("-", "_"): HOSTILE})
        assert "hacked" not in {path.name for path in job.workspace.rglob("*")}, name
        assert "${{ github.token }}" in done.log or done.exit_code in (0, 4, 8, 127), (name, done.log)
        assert "Traceback" not in done.log, (name, done.log)
    assert before <= snapshot(job.workspace)


def test_hostile_texts_of_all_other_inputs_reach_the_container_as_they_are(job: Job) -> None:
    names = reach_the_container()
    before = snapshot(job.workspace)
    program = job.script("import os; print('flags', os.environ['PROBE_FLAGS'])")

    done = job.run(suite=program, **{name.replace("-", "_"): HOSTILE for name in names})

    assert done.exit_code == 0, done.log
    flags = json.loads(done.log.split("flags ")[1])
    assert {f"--{name}={HOSTILE}" for name in names} <= {*flags}
    assert "hacked" not in {path.name for path in job.workspace.rglob("*")}
    assert "Traceback" not in done.log
    assert before <= snapshot(job.workspace)


def test_hostile_words_arrive_as_they_are(job: Job) -> None:
    program = job.script("import sys, json; print('argv', json.dumps(sys.argv[1:]))")
    done = job.run(suite=program, pytest_args="'$(touch hacked)' \"${{ secrets.X }}\" '`id`' 'a\nb'")
    assert done.exit_code == 0, done.log
    assert json.loads(done.log.split("argv ")[1]) == [
        "--",
        "$(touch hacked)",
        "${{ secrets.X }}",
        "`id`",
        "a\nb",
    ]


def snapshot(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
