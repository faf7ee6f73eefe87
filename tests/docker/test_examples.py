"""The consumer repositories under examples/, run as a runner would run them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from engine import ROOT, Engine
from github_runner import ActionResult, Runner, read_file_commands
from launching import ours


@pytest.fixture
def checkout(workspace: Path, request: pytest.FixtureRequest) -> Path:
    """The example as its runner has checked it out: files of an ordinary user."""
    shutil.copytree(ROOT / "examples" / request.param, workspace, dirs_exist_ok=True)
    owner = workspace.stat()
    if os.getuid() == 0:
        for path in workspace.rglob("*"):
            os.chown(path, owner.st_uid, owner.st_gid)
    return workspace


@pytest.fixture
def runner(engine: Engine, tmp_path: Path, checkout: Path, runner_temp: Path) -> Iterator[Runner]:
    environment = {
        name: value
        for name, value in engine.environment().items()
        if not name.startswith(("GITHUB_", "DISTTEST_", "PYTHON"))
    }
    yield Runner(tmp_path, checkout, environment, temp=runner_temp)
    for container in ours(engine):
        container.remove(force=True)


def run(runner: Runner, folder: str, **inputs: str) -> ActionResult:
    given = {name.replace("_", "-"): value for name, value in inputs.items()}
    return runner.run_action(ROOT / folder, {"pull": "never", **given})


def run_merge(runner: Runner, **inputs: str) -> ActionResult:
    return runner.run_action(ROOT / "actions" / "merge", inputs)


@pytest.mark.parametrize("checkout", ["single"], indirect=True)
def test_one_runner(runner: Runner, image: str) -> None:
    done = run(runner, "", suite="tests", image=image, results="disttest-results", deadline="300")
    assert done.exit_code == 0, done.log
    assert done.outputs["conclusion"] == "success"
    assert (done.outputs["tests"], done.outputs["passed"], done.outputs["failed-tests"]) == ("1", "1", "[]")
    junit = Path(done.outputs["junit"])
    assert junit == runner.workspace / "disttest-results" / "junit.xml"
    assert junit.stat().st_uid == runner.workspace.stat().st_uid
    assert done.summary.strip()


@pytest.mark.parametrize("checkout", ["matrix"], indirect=True)
def test_a_pool_plans_runs_its_shards_and_merges(runner: Runner, image: str) -> None:
    planned = run(
        runner, "actions/plan", suite="tests", image=image, pool="small:1:1\nlarge:8:1", revision="abc"
    )
    assert planned.exit_code == 0, planned.log
    entries = json.loads(planned.outputs["matrix"])["include"]
    assert sum(entry["tests"] for entry in entries) == 2
    assert planned.outputs["plan"] == "./plan.json"
    for entry in entries:
        number = str(entry["shard"])
        shard = run(
            runner, "", suite="tests", image=image, plan="plan.json", shard=number, revision="abc",
            results=f"shards/{number}",
        )  # fmt: skip
        assert shard.exit_code == 0, shard.log
        assert shard.outputs["tests"] == str(entry["tests"])
    merged = run_merge(runner, directories="shards", plan="plan.json", results="merged")
    assert merged.exit_code == 0, merged.log
    assert (merged.outputs["tests"], merged.outputs["passed"]) == ("2", "2")
    assert Path(merged.outputs["junit"]).exists()


@pytest.mark.parametrize("checkout", ["doctor"], indirect=True)
def test_a_runner_of_a_pool_sees_its_doctor(runner: Runner, image: str) -> None:
    done = run(runner, "actions/doctor", level="full", image=image, junit="doctor.xml")
    assert done.exit_code == 0, done.log
    assert "this machine works" in done.log
    checks = {
        case.get("name") for case in ElementTree.parse(runner.workspace / "doctor.xml").iter("testcase")
    }
    assert {"matmul", "collective_all_reduce"} <= checks


@pytest.mark.parametrize("checkout", ["arc"], indirect=True)
def test_a_pod_without_an_engine(engine: Engine, image: str, checkout: Path, tmp_path: Path) -> None:
    """ARC's kubernetes mode: the entrypoint is replaced by a sleep, and each step is executed in the pod."""
    commands = tmp_path / "commands"
    commands.mkdir()
    mounts = (f"--volume={ROOT}:/action:ro", f"--volume={checkout}:/__w", f"--volume={commands}:/commands")
    name = "disttest-test-pod"
    engine.docker("rm", "--force", name, check=False)
    engine.docker("run", "--detach", f"--name={name}", "--entrypoint=tail", *mounts, image, "-f", "/dev/null")
    try:
        placed = step(
            engine, name, commands, "/action/actions/place.sh", {"DISTTEST_INPUT_IN_PLACE": "always"}
        )
        assert placed["mode"] == "in-place"
        inputs = {
            "DISTTEST_COMMAND": placed["command"],
            "DISTTEST_STEP_MODE": placed["mode"],
            "DISTTEST_STEP_COMMAND": "run",
            "DISTTEST_INPUT_SUITE": "tests",
            "DISTTEST_INPUT_RESULTS": "disttest-results",
        }
        outputs = step(engine, name, commands, 'exec "$DISTTEST_COMMAND" github-step', inputs)
        assert (outputs["conclusion"], outputs["passed"]) == ("success", "1")
        assert (checkout / "disttest-results" / "junit.xml").exists()
    finally:
        engine.docker("rm", "--force", name)


def step(engine: Engine, pod: str, commands: Path, script: str, env: dict[str, str]) -> dict[str, str]:
    """Execute a step in the pod and read its outputs."""
    file = commands / "output"
    file.write_text("")
    options = [
        f"--env={name}={value}" for name, value in (env | {"GITHUB_OUTPUT": "/commands/output"}).items()
    ]
    done = engine.docker(
        "exec", "--workdir=/__w", *options, pod, "bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return read_file_commands(file.read_text())
