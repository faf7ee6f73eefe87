"""A release: all of it that needs no credentials is run, the rest is read."""

from __future__ import annotations

import json
import os
import re
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
CHANGED = (".github/workflows/arc.yml", "entrypoint/disttest/extras/container/options.py")
"""Files that a release changes; the checkout has them as committed."""
DIGEST = f"sha256:{'a' * 64}"


@pytest.fixture
def release(tmp_path: Path) -> Runner:
    """A checkout in which this version's changes have their date, and a runner in it."""
    checkout = tmp_path / "checkout"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", checkout], check=True, timeout=60
    )
    for name in ("tools/release.py", "Makefile", "CHANGELOG.md", ".gitignore", *CHANGED):
        shutil.copy(ROOT / name, checkout / name)
    changes = checkout / "CHANGELOG.md"
    changes.write_text(
        changes.read_text().replace(f"## {VERSION} (unreleased)", f"## {VERSION} (2026-12-01)")
    )
    git(checkout, "commit", "--quiet", "--all", "--allow-empty", "--message", "As it is here")
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
    digests = {
        target: f"sha256:{letter * 64}" for target, letter in (("cpu", "b"), ("cuda", "a"), ("full", "c"))
    }
    created = "2026-12-01T00:00:00+00:00"
    needs = {"version": {"outputs": {"version": VERSION, "created": created}}, "image": {"outputs": digests}}
    run_job(release, "release", needs=needs)
    notes = (release.workspace / "notes.md").read_text()
    assert notes.startswith("- Worlds of real ranks")
    assert "\n## " not in notes
    action = yaml.safe_load((release.workspace / "actions/docker/action.yml").read_text())
    assert action["runs"]["image"] == f"docker://ghcr.io/org/dist-tests:{VERSION}-cuda@{DIGEST}"
    pinned, referring = (git(release.workspace, "rev-parse", commit) for commit in ("HEAD~1", "HEAD"))
    assert referring in notes
    # One commit has the images, and the workflows of the next one use the actions of that one.
    workflows = (release.workspace / ".github/workflows").glob("*.yml")
    used = {
        one
        for path in workflows
        for one in re.findall(r"uses: org/dist-tests[\w/-]*@(\S+)", path.read_text())
    }
    assert used == {pinned}
    arc = yaml.safe_load((release.workspace / ".github/workflows/arc.yml").read_text())
    assert arc[True]["workflow_call"]["inputs"]["image"]["default"].endswith(f"-cuda@{DIGEST}")
    options = git(release.workspace, "show", "HEAD~1:entrypoint/disttest/extras/container/options.py")
    assert f"DIGESTS: dict[str, str] = {json.dumps(digests)}\n" in options

    git(release.workspace, "reset", "--quiet", "--hard", "HEAD~2")
    run_job(release, "release", needs=needs)
    assert git(release.workspace, "rev-parse", "HEAD") == referring, "a repetition makes the same commits"


@pytest.fixture
def origin(release: Runner, tmp_path: Path) -> Path:
    """The repository that the checkout pushes to."""
    folder = tmp_path / "origin.git"
    git(tmp_path, "init", "--quiet", "--bare", str(folder))
    git(folder, "config", "receive.shallowUpdate", "true")  # GitHub has the history that the checkout lacks
    git(release.workspace, "remote", "set-url", "origin", str(folder))
    return folder


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *words],
        cwd=folder, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


def push(release: Runner, version: str) -> subprocess.CompletedProcess[str]:
    """Push a release of this version from a commit that has it."""
    project = release.workspace / "pyproject.toml"
    project.write_text(
        re.sub(r'^version = ".*"', f'version = "{version}"', project.read_text(), flags=re.MULTILINE)
    )
    git(release.workspace, "commit", "--quiet", "--all", "--allow-empty", "--message", version)
    return subprocess.run(
        [sys.executable, "tools/release.py", "push", f"v{version}"],
        cwd=release.workspace, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_tag_of_the_major_version_only_moves_forward(release: Runner, origin: Path) -> None:
    heads = {}
    for version in ("1.2.0", "1.10.0", "1.9.9"):
        done = push(release, version)
        assert done.returncode == 0, done.stderr
        heads[version] = git(release.workspace, "rev-parse", "HEAD")
        assert git(origin, "rev-parse", f"action-v{version}") == heads[version]
    assert "v1 stays at 1.10.0" in done.stdout
    assert git(origin, "rev-parse", "v1") == heads["1.10.0"]


def test_a_tag_is_pushed_once(release: Runner, origin: Path) -> None:
    assert push(release, "1.2.0").returncode == 0
    before = git(origin, "rev-parse", "v1")
    again = subprocess.run(
        [sys.executable, "tools/release.py", "push", "v1.2.0"], cwd=release.workspace, check=False, timeout=60
    )
    assert again.returncode == 0, "nothing is left to do"
    other = push(release, "1.2.0")
    assert "action-v1.2.0 is" in other.stderr
    assert git(origin, "rev-parse", "v1") == before


DOCKER = """\
#!/bin/sh
case $5 in
    *absent*) echo "ERROR: $5: not found" >&2; exit 1 ;;
    *down*) echo "ERROR: dial tcp: i/o timeout" >&2; exit 1 ;;
esac
echo '{"manifest": {"digest": "sha256:d"}, "image": {"config": {"Labels": {"org.opencontainers.image.revision": "abc"}}}}'
"""


@pytest.mark.parametrize(
    ("name", "revision", "out", "error"),
    [
        ("r/absent:1", "abc", "digest=\n", ""),
        ("r/known:1", "abc", "digest=sha256:d\n", ""),
        ("r/known:1", "def", "", "r/known:1 exists and is not of def: a tag is pushed once"),
        ("r/down:1", "abc", "", "r/down:1 cannot be looked up: ERROR: dial tcp"),
    ],
)
def test_an_image_that_was_pushed_before_is_kept(
    tmp_path: Path, name: str, revision: str, out: str, error: str
) -> None:
    (tmp_path / "docker").write_text(DOCKER.replace("$5", "$4"))
    (tmp_path / "docker").chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/release.py"), "image", name, revision],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == out
    assert error in done.stderr
    assert bool(done.returncode) == bool(error)


def test_the_package_is_complete_and_the_same_each_time(release: Runner) -> None:
    run_job(release, "package")
    dist = release.workspace / "dist"
    names = {f"dist_tests-{VERSION}-py3-none-any.whl", f"dist_tests-{VERSION}.tar.gz"}
    first = {path.name: path.read_bytes() for path in dist.iterdir()}
    assert set(first) == names
    with zipfile.ZipFile(dist / f"dist_tests-{VERSION}-py3-none-any.whl") as wheel:
        assert {
            "disttest/plugin.py",
            "disttest/suites/ddp/__init__.py",
            "disttest/results/messages.md",
        } <= set(wheel.namelist())
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
