"""Commit, branch and project that a run records: from the variables of a CI system, or from git."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from disttest.extras.history.hooks import FILE
from disttest.extras.history.limits import GIT_S
from disttest.model import Frozen
from disttest.options.environment import environment

if TYPE_CHECKING:
    from disttest.cli.run_request import RunRequest


# GITHUB_HEAD_REF is the branch of a pull request, whose GITHUB_REF_NAME is `7/merge`. It is empty for a push.
_SYSTEMS = (
    ("GITHUB_SHA", ("GITHUB_HEAD_REF", "GITHUB_REF_NAME"), "GITHUB_REPOSITORY", "github.com/"),
    ("CI_COMMIT_SHA", ("CI_COMMIT_REF_NAME",), "CI_PROJECT_URL", ""),
    ("BUILDKITE_COMMIT", ("BUILDKITE_BRANCH",), "BUILDKITE_REPO", ""),
    ("CIRCLE_SHA1", ("CIRCLE_BRANCH",), "CIRCLE_REPOSITORY_URL", ""),
    ("BUILD_SOURCEVERSION", ("BUILD_SOURCEBRANCHNAME",), "BUILD_REPOSITORY_URI", ""),
    ("GIT_COMMIT", ("GIT_BRANCH",), "GIT_URL", ""),
)
"""Variables with the commit, the branch and the project: GitHub, GitLab, Buildkite, CircleCI, Azure, Jenkins."""


class CommitFacts(Frozen):
    """State of a project that a run tests. Empty fields are unknown."""

    file: str = ""
    """History file of the run."""
    commit: str = ""
    branch: str = ""
    project: str = ""
    """Host and path of its repository: ``github.com/org/project``."""
    is_dirty: bool = False
    """Whether files differ from the commit."""


def facts_of_ci(environ: Mapping[str, str]) -> CommitFacts | None:
    """Read the facts from the variables of a CI system; None if there are none."""
    for commit, branches, project, host in _SYSTEMS:
        if environ.get(commit):
            branch = next(filter(None, map(environ.get, branches)), "") or ""
            named = environ.get(project, "")
            return CommitFacts(
                commit=environ[commit], branch=branch, project=project_of(f"{host}{named}" if named else "")
            )
    return None


def facts_of_git(folder: Path) -> CommitFacts:
    """Ask git for the facts; unknown outside of a work tree."""
    # `# branch.oid 1a2b…` or `(initial)`, `# branch.head main` or `(detached)`, then a line for each changed
    # file. Untracked files are not looked for, which takes long in a large work tree.
    lines = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no").splitlines()
    heads = dict(line[2:].partition(" ")[::2] for line in lines if line.startswith("# branch."))
    commit, branch = heads.get("branch.oid", ""), heads.get("branch.head", "")
    return CommitFacts(
        commit="" if commit.startswith("(") else commit,
        branch="" if branch.startswith("(") else branch,
        project=project_of_git(folder),
        is_dirty=any(not line.startswith("#") for line in lines),
    )


def project_of_git(folder: Path) -> str:
    """Return the host and path of the repository that a work tree was cloned from; empty if unknown."""
    return project_of(_git(folder, "config", "--get", "remote.origin.url"))


def project_of(url: str) -> str:
    """Return host and path of a repository: the same for each of its URLs, and without a password."""
    # `git@github.com:Org/Repo.git`, `ssh://git@github.com:22/org/repo` and
    # `https://x:token@github.com/org/repo/` all become `github.com/org/repo`.
    bare = re.sub(r"^[a-z+]+://", "", url.strip().lower()).rpartition("@")[2]
    return re.sub(r"(?<=[^/:]):(?:\d+/)?", "/", bare).rstrip("/").removesuffix(".git")


def _git(folder: Path, *words: str) -> str:
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout if ended.returncode == 0 else ""


def facts_of(request: RunRequest) -> CommitFacts | None:
    """Return the facts; None outside of CI in a run without a history, which must not wait for git."""
    file: Path | None = request.settings[FILE.field]
    facts = facts_of_ci(environment())
    if file is None:
        return facts
    found = facts or facts_of_git(Path.cwd())
    return msgspec.structs.replace(found, file=str(file.absolute()))
