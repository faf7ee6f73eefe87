"""Where the action finds a Python to start from, on runners that have none that does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from action_files import ROOT
from github_runner import ActionResult, Runner, StepResult, launcher_environment

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
    made = launcher_environment(runner.temp, ROOT) / "bin" / "python"
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
    (launcher_environment(runner.temp, ROOT) / "bin").mkdir(parents=True)
    (launcher_environment(runner.temp, ROOT) / "ready").touch()
    done = merge(runner)
    assert done.steps["python"].outcome == "skipped"
    assert "setup-python" not in done.log


PYTHON_THAT_INSTALLS_NOTHING = """\
#!/bin/sh
case "$1 $2" in
    "-m venv") mkdir -p "$4/bin" "$4/site" && cp "$0" "$4/bin/python" ;;
    "-c "*) echo "$(dirname "$0")/../site" ;;
esac
"""


def test_two_versions_in_one_job_each_run_their_own_code(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON_THAT_INSTALLS_NOTHING)
    python.chmod(0o755)
    environ = {"PATH": os.environ["PATH"], "DISTTEST_PYTHON": str(python), "RUNNER_TEMP": str(tmp_path)}
    code = {}
    for version in ("v1", "v2"):
        for name in ("actions/environment.sh", "requirements/launch.lock"):
            (tmp_path / version / name).parent.mkdir(parents=True)
            shutil.copy(ROOT / name, tmp_path / version / name)
        output = tmp_path / f"output-{version}"
        subprocess.run(
            [tmp_path / version / "actions" / "environment.sh"],
            env={**environ, "GITHUB_OUTPUT": str(output)}, check=True, timeout=60,
        )  # fmt: skip
        made = launcher_environment(tmp_path, tmp_path / version)
        assert output.read_text() == f"command={made}/bin/disttest\n"
        code[version] = (made / "site" / "disttest.pth").read_text()
    assert code == {version: f"{tmp_path / version}/entrypoint\n" for version in code}
