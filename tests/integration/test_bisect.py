"""``disttest bisect`` over real commits, in a work tree of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from environments import make_environment, uv
from lab import Lab

IDENTITY = {f"GIT_{who}_{what}": f"{who}@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
TEST = """
import helper
import pytest

@pytest.mark.world_size(2)
def test_step(world):
    assert helper.is_right(), "boom"
"""
RIGHT = "def is_right():\n    return True\n"
FLAKY = """
import random

def is_right():
    return random.SystemRandom().random() > 0.5
"""


def git(folder: Path, *words: str) -> str:
    environ = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": os.devnull}
    ended = subprocess.run(
        ["git", *words], cwd=folder, env=environ, check=True, capture_output=True, text=True
    )
    return ended.stdout.strip()


def committed(folder: Path, message: str, **files: str) -> str:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def project(lab: Lab) -> Lab:
    git(lab.folder, "init", "--quiet", "--initial-branch", "main")
    (lab.folder / ".gitignore").write_text("results*\n__pycache__\n.pytest_cache\n")
    return lab


@pytest.mark.slow("runs the test at several commits")
def test_a_flaky_test_of_ranks_in_a_subfolder_is_bisected(project):
    sub = project.folder / "sub"
    sub.mkdir()
    commits = [committed(sub, "0", test_step=TEST, helper=RIGHT), committed(sub, "does nothing")]
    commits.append(committed(sub, "breaks it", helper=FLAKY))
    commits.append(committed(sub, "cannot be imported", helper="1 +"))
    commits.append(committed(sub, "last", helper=FLAKY))
    (sub / "helper.py").write_text("a change of the user")
    inner = Lab(sub)
    ended = inner.run(
        "bisect", "test_step.py::test_step", commits[0], "HEAD", "--rate", "0.5", "--world-sizes", "2"
    )

    assert ended.exit_code == 0, ended.output
    assert re.search(
        rf"first bad commit: {commits[2][:10]} breaks it \(9\d % sure, \d+ runs\)", ended.output
    ), ended.output
    assert git(project.folder, "worktree", "list").count("\n") == 0
    assert (sub / "helper.py").read_text() == "a change of the user"
    assert [*(sub / "results-bisect").glob("*/events.jsonl")]


@pytest.mark.slow("runs the test at several commits")
def test_a_script_prepares_each_commit_and_pytest_arguments_arrive(project):
    commits = [
        committed(project.folder, "0", test_mine="def test_x():\n    import built\n    assert built.OK\n")
    ]
    commits += [committed(project.folder, "1"), committed(project.folder, "2", broken="")]
    (project.folder / "prepare.sh").write_text(
        'echo "OK = $([ -e broken.py ] && echo False || echo True)" >built.py\n'
    )
    words = (
        "bisect",
        "test_mine.py::test_x",
        commits[0],
        commits[2],
        "--prepare",
        "prepare.sh",
        "--rate",
        "1",
    )
    ended = project.run(*words, "--", "-p", "no:cacheprovider")

    assert f"first bad commit: {commits[2][:10]} 2" in ended.output, ended.output


@pytest.mark.slow("runs the test at several commits")
def test_a_failure_in_quarantine_is_a_failure(project):
    commits = [committed(project.folder, "0", test_mine="def test_x():\n    pass\n")]
    commits.append(committed(project.folder, "breaks it", test_mine="def test_x():\n    assert False\n"))
    (project.folder / "flaky.toml").write_text(
        '[[test]]\ntest = "test_mine.py::test_x"\nowner = "ann"\nreason = "races"\nexpires = 2999-01-01\n'
    )
    commits += [committed(project.folder, f"in quarantine {number}") for number in range(4)]
    ended = project.run("bisect", "test_mine.py::test_x", commits[0], "HEAD", "--rate", "1")

    assert f"first bad commit: {commits[1][:10]} breaks it" in ended.output, ended.output


@pytest.mark.slow("runs the test at several commits")
def test_an_expected_failure_at_all_commits_is_no_failure(project):
    known = "import pytest\n\n@pytest.mark.xfail\ndef test_known():\n    assert False\n"
    commits = [committed(project.folder, "0", test_mine=known + "\ndef test_x():\n    pass\n")]
    commits.append(
        committed(project.folder, "breaks it", test_mine=known + "\ndef test_x():\n    assert False\n")
    )
    ended = project.run("bisect", "test_mine.py", commits[0], "HEAD", "--rate", "1")

    assert f"first bad commit: {commits[1][:10]} breaks it" in ended.output, ended.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("t.py", "nowhere", "HEAD"), "'nowhere' is not a commit here"),
        (("t.py", "HEAD", "HEAD"), "GOOD and BAD are the same commit"),
        (("t.py", "HEAD", "HEAD~1"), "GOOD (HEAD) is not an ancestor of BAD (HEAD~1)"),
        (("t.py", "HEAD~1", "HEAD", "--repeat", "3"), "leave --repeat out"),
        (("t.py", "HEAD~1", "HEAD", "--rate", "0"), "'0' is not a number above 0"),
        (("t.py", "HEAD~1", "HEAD", "--prepare", "gone.sh"), "--prepare gone.sh is not a file"),
        (("t.py", "HEAD~1", "HEAD"), "the test cannot run at BAD"),
    ],
)
def test_refusals(project, words, message):
    committed(project.folder, "0")
    committed(project.folder, "1")
    ended = project.run("bisect", *words)

    assert ended.exit_code == 4, ended.output
    assert message in ended.output
    assert git(project.folder, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_search_that_is_cancelled_leaves_no_work_tree(project, number):
    slow = "import time\n\ndef test_x():\n    print('begun', flush=True)\n    time.sleep(60)\n"
    committed(project.folder, "0", test_mine=slow)
    committed(project.folder, "1")
    process = project.start("bisect", "test_mine.py::test_x", "HEAD~1", "HEAD")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("bisect: 2 commits")
    while not [*project.folder.glob("results-bisect/*/events.jsonl")]:
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)

    assert process.returncode == 130, output
    assert git(project.folder, "worktree", "list").count("\n") == 0


IMPORTS = "import mine\n\ndef test_x():\n    assert mine.RIGHT\n"
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "mine"
version = "1"

[tool.setuptools]
packages = ["mine"]
package-dir = {PACKAGE_DIR}
"""


def three_commits(folder: Path, package: str = "src", package_dir: str = '{"" = "src"}') -> list[str]:
    """The second one breaks a package, which the test does not import from its own folder."""
    (folder / package / "mine").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "pyproject.toml").write_text(PROJECT.replace("{PACKAGE_DIR}", package_dir))
    commits = [
        committed(folder, "0", **{"tests/test_mine": IMPORTS, f"{package}/mine/__init__": "RIGHT = True\n"})
    ]
    commits.append(committed(folder, "breaks it", **{f"{package}/mine/__init__": "RIGHT = False\n"}))
    return [*commits, committed(folder, "last")]


@pytest.mark.slow("runs the test at several commits")
@pytest.mark.parametrize(
    ("layout", "editable"),
    [
        pytest.param((), True, id="a folder on sys.path"),
        pytest.param(("lib", '{mine = "lib/mine"}'), True, id="a finder"),
        pytest.param((), False, id="a copy"),
    ],
)
def test_an_installed_project_is_imported_from_each_commit(project, tmp_path_factory, layout, editable):
    """The newest code would fail at all commits, and the first one would be called bad."""
    commits = three_commits(project.folder, *layout)
    python = make_environment(tmp_path_factory.mktemp("environment") / "venv")
    words = ["--quiet", "--no-deps", "--no-build-isolation", *["--editable"] * editable]
    uv("pip", "install", "--python", python, *words, project.folder)
    ended = Lab(project.folder, python=str(python)).run(
        "bisect", "tests/test_mine.py::test_x", commits[0], "HEAD", "--rate", "1"
    )

    first = "first bad commit: " + f"{commits[1][:10]} breaks it"
    note = "bisect: note: mine is installed as a copy"
    assert (first in ended.output) == editable, ended.output
    assert (note in ended.output) == (not editable), ended.output


@pytest.mark.slow("runs the test at several commits")
def test_a_folder_in_pythonpath_is_that_of_each_commit(project):
    commits = three_commits(project.folder)
    path = os.pathsep.join([str(project.folder / "src"), project.environ["PYTHONPATH"]])
    ended = project.run(
        "bisect", "tests/test_mine.py::test_x", commits[0], "HEAD", "--rate", "1", PYTHONPATH=path
    )

    assert f"first bad commit: {commits[1][:10]} breaks it" in ended.output, ended.output
