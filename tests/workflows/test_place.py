"""Where the action finds a Python to start from, on runners that have none that does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from action_files import ROOT
from github_runner import ActionResult, Runner, StepResult

WITHOUT_ENSUREPIP = 'import sys\nsys.modules["ensurepip"] = None\n'
"""As on Debian and Ubuntu without python3-venv: `import venv` works there."""
TOO_OLD = "import sys\nsys.version_info = (3, 10, 0)\n"


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DISTTEST_")}
    return Runner(tmp_path, workspace, environment)


def python_that(runner: Runner, folder: Path, broken: str) -> None:
    """Put a python3 first on PATH whose start-up file says how it is broken."""
    (folder / "site").mkdir(parents=True)
    (folder / "site" / "sitecustomize.py").write_text(broken)
    command = folder / "python3"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/site" exec "{sys.executable}" "$@"\n')
    command.chmod(0o755)
    runner.environment["PATH"] = f"{folder}:{runner.environment['PATH']}"


def merge(runner: Runner) -> ActionResult:
    """The action that needs neither engine nor torch, asked for what is not there."""
    return runner.run_action(ROOT / "actions" / "merge", {"directories": "nothing"})


def test_a_python_that_cannot_make_environments_is_not_taken(runner: Runner, tmp_path: Path) -> None:
    python_that(runner, tmp_path / "bin", WITHOUT_ENSUREPIP)
    asked = []

    def setup_python(inputs: dict[str, str]) -> StepResult:
        asked.append(inputs)
        return StepResult(outcome="success", outputs={"python-path": sys.executable})

    runner.actions["actions/setup-python"] = setup_python
    done = merge(runner)

    assert asked == [{"python-version": "3.12", "update-environment": "false"}]
    assert "apt-get install python3-venv" in done.log
    assert done.steps["environment"].outcome == "success", done.log
    made = runner.temp / "disttest-launch" / "bin" / "python"
    assert made.resolve() == Path(sys.executable).resolve()
    # The command itself answers: nothing is there to merge.
    assert "no directory nothing" in done.log


def test_a_python_that_is_too_old_is_not_taken(runner: Runner, tmp_path: Path) -> None:
    python_that(runner, tmp_path / "bin", TOO_OLD)
    runner.actions["actions/setup-python"] = lambda inputs: StepResult(outcome="failure", exit_code=1)
    done = merge(runner)
    assert (done.steps["python"].outcome, done.steps["environment"].outcome) == ("failure", "skipped")
    assert "older than 3.11" in done.log


def test_a_python_that_can_is_taken(runner: Runner) -> None:
    (runner.temp / "disttest-launch" / "bin").mkdir(parents=True)
    (runner.temp / "disttest-launch" / "ready").touch()
    done = merge(runner)
    assert done.steps["python"].outcome == "skipped"
    assert "setup-python" not in done.log
