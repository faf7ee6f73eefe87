"""A release: all of it that needs no credentials is run, the rest is read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from action_files import ROOT
from github_runner import Runner, StepResult

import disttest

VERSION = disttest.__version__
JOBS: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
DIGEST = f"sha256:{'a' * 64}"


@pytest.fixture
def release(tmp_path: Path) -> Runner:
    """A checkout in which this version's changes have their date, and a runner in it."""
    checkout = tmp_path / "checkout"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", checkout], check=True, timeout=60
    )
    for name in ("tools/release.py", "Makefile", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, checkout / name)
    changes = checkout / "CHANGELOG.md"
    changes.write_text(
        changes.read_text().replace(f"## {VERSION} (unreleased)", f"## {VERSION} (2026-12-01)")
    )
    runner = Runner(tmp_path, checkout, dict(os.environ))
    done = StepResult(outcome="success")
    runner.actions = {
        f"actions/{name}": lambda inputs: done for name in ("checkout", "setup-python", "upload-artifact")
    }
    return runner


def run_job(runner: Runner, name: str, **contexts: Any) -> dict[str, StepResult]:
    """Run a job's steps; those that have the token are left out."""
    steps = [step for step in JOBS[name]["steps"] if "GH_TOKEN" not in step.get("env", {})]
    github = {"ref_name": f"v{VERSION}", "sha": "a" * 40, "run_attempt": "1"}
    done = runner.run_steps(steps, {"github": github, "steps": {}, **contexts})
    assert {one.outcome for one in done.values()} == {"success"}, "".join(one.log for one in done.values())
    return done


def refused(runner: Runner, tag: str) -> str:
    told = subprocess.run(
        [sys.executable, "tools/release.py", "check", tag],
        cwd=runner.workspace, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert told.returncode != 0
    return told.stderr


def test_the_version_and_the_time_of_the_commit(release: Runner) -> None:
    outputs = run_job(release, "version")["read"].outputs
    assert outputs["version"] == VERSION
    assert outputs["created"].startswith("20")
    arguments = next(step for step in JOBS["image"]["steps"] if step.get("id") == "push")["with"]
    assert "CREATED=${{ needs.version.outputs.created }}" in arguments["build-args"]
    assert (arguments["sbom"], arguments["provenance"]) == (True, "mode=max")


def test_a_tag_that_is_not_what_the_files_say(release: Runner) -> None:
    assert "9.9.9 is not what these name: pyproject.toml, entrypoint/disttest/__init__.py" in refused(
        release, "v9.9.9"
    )
    assert "v1 is no release" in refused(release, "v1")
    changes = release.workspace / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("(2026-12-01)", "(unreleased)"))
    assert f"{VERSION} is not what these name: CHANGELOG.md (with a date)" in refused(release, f"v{VERSION}")


def test_notes_and_the_digest_of_the_docker_action(release: Runner) -> None:
    needs = {"version": {"outputs": {"version": VERSION}}, "image": {"outputs": {"cuda": DIGEST}}}
    run_job(release, "release", needs=needs)
    notes = (release.workspace / "notes.md").read_text()
    assert notes.startswith("- Worlds of real ranks")
    assert "\n## " not in notes
    action = yaml.safe_load((release.workspace / "actions/docker/action.yml").read_text())
    assert action["runs"]["image"] == f"docker://ghcr.io/org/dist-tests:{VERSION}-cuda@{DIGEST}"
    told = subprocess.run(
        ["git", "show", "--stat", "--format=%s"],
        cwd=release.workspace,
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.startswith(f"Name the image of v{VERSION} by digest")
    assert "1 file changed, 1 insertion(+), 1 deletion(-)" in told.stdout


def test_the_package_is_complete_and_the_same_each_time(release: Runner) -> None:
    run_job(release, "package")
    dist = release.workspace / "dist"
    names = {f"dist_tests-{VERSION}-py3-none-any.whl", f"dist_tests-{VERSION}.tar.gz"}
    first = {path.name: path.read_bytes() for path in dist.iterdir()}
    assert set(first) == names
    with zipfile.ZipFile(dist / f"dist_tests-{VERSION}-py3-none-any.whl") as wheel:
        assert {"disttest/plugin.py", "disttest/suites/ddp/__init__.py"} <= set(wheel.namelist())
    with tarfile.open(dist / f"dist_tests-{VERSION}.tar.gz") as sources:
        assert f"dist_tests-{VERSION}/pyproject.toml" in sources.getnames()
    run_job(release, "package")
    assert {path.name: path.read_bytes() for path in dist.iterdir()} == first


def test_nothing_is_published_before_the_tests_passed() -> None:
    for name, job in JOBS.items():
        writes = {scope for scope, access in job["permissions"].items() if access == "write"}
        before = set()
        waiting = [name]
        while waiting:
            needs = JOBS[waiting.pop()].get("needs", [])
            waiting += [needs] if isinstance(needs, str) else needs
            before |= set(waiting)
        assert not writes or "tests" in before, name
