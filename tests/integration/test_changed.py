"""Runs of what a change affects: real worlds, one edit of the project for each case."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import msgspec
import pytest
from lab import Lab
from typed import check_page

from disttest.extras.changed.changes import Repository
from disttest.extras.changed.record import Record
from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

IDENTITY = {f"GIT_{who}_{what}": f"{who}@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

FILES = {
    "conftest.py": """
        import pytest
        import shared

        def pytest_collection_modifyitems(items):
            items.sort(key=shared.order)

        @pytest.fixture(scope="session")
        def table():
            return shared.make_table()
    """,
    "shared.py": """
        def make_table():
            return [1]

        def order(item):
            return 0
    """,
    "lib.py": """
        import functools

        LIMIT = 3

        def registered():
            return "at import"

        NAME = registered()

        def everywhere():
            return 0

        def in_rank_one():
            return 1

        def in_two_ranks():
            return 2

        @functools.cache
        def cached():
            for_cache()
            return 3

        def for_cache():
            return 4
    """,
    "other.py": """
        def in_fork():
            return 0

        def in_thread():
            return 0

        def in_class():
            return 0
    """,
    "program.py": """
        def main():
            print("done")

        main()
    """,
    "test_worlds.py": """
        import pytest
        import lib

        @pytest.mark.world_size(1, 2)
        def test_sizes(world):
            lib.everywhere()
            if world.size == 2:
                lib.in_two_ranks()

        @pytest.mark.world_size(2)
        def test_rank_one(world):
            if world.rank == 1:
                lib.in_rank_one()

        @pytest.mark.world_size(2)
        def test_first(world, table):
            lib.cached()

        @pytest.mark.world_size(2)
        def test_second(world, table):
            pass
    """,
    "test_others.py": """
        import importlib
        import multiprocessing
        import pathlib
        import subprocess
        import sys
        import threading

        from torch.testing._internal.common_distributed import MultiProcessTestCase

        import other

        FOLDER = pathlib.Path(__file__).parent

        def test_data():
            assert (FOLDER / "data.txt").read_text()

        def test_hidden():
            assert (FOLDER / ".data" / "one.json").read_text()

        def test_folder():
            assert list((FOLDER / "cases").iterdir())

        def test_program():
            subprocess.run([sys.executable, str(FOLDER / "program.py")], check=True)

        def test_fork():
            child = multiprocessing.get_context("fork").Process(target=other.in_fork)
            child.start()
            child.join()

        def test_thread():
            thread = threading.Thread(target=other.in_thread)
            thread.start()
            thread.join()

        class TestOfTorch(MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            def test_class(self):
                if self.rank == 1:
                    other.in_class()
    """,
    "test_alone.py": """
        def test_alone():
            pass
    """,
    "data.txt": "1",
    ".data/one.json": "1",
    "cases/one.txt": "1",
    ".gitignore": "results*\n__pycache__\n.pytest_cache\n",
}
WORLDS = {
    "test_sizes[1xgloo]",
    "test_sizes[2xgloo]",
    "test_rank_one[2xgloo]",
    "test_first[2xgloo]",
    "test_second[2xgloo]",
}
OTHERS = {"test_data", "test_hidden", "test_folder", "test_program", "test_fork", "test_thread", "test_class"}
ALL = {*WORLDS, *OTHERS, "test_alone"}

EDITS = {
    "function of one rank": ("lib.py", "return 1", "return 11", {"test_rank_one[2xgloo]"}),
    "function of one world size": ("lib.py", "return 2", "return 22", {"test_sizes[2xgloo]"}),
    "function of all sizes": ("lib.py", "return 0", "return 00", {*()}),
    "function of all sizes, changed": (
        "lib.py",
        "return 0",
        "return 9",
        {"test_sizes[1xgloo]", "test_sizes[2xgloo]"},
    ),
    "comment": ("lib.py", "return 1", "return 1  # one", {*()}),
    "constant of a module": ("lib.py", "LIMIT = 3", "LIMIT = 4", WORLDS),
    "function that an import calls": ("lib.py", "at import", "changed", WORLDS),
    "function with a cache": ("lib.py", "return 3", "return 33", WORLDS),
    "function that one with a cache calls": ("lib.py", "return 4", "return 44", WORLDS),
    "fixture of a session": (
        "shared.py",
        "return [1]",
        "return [2]",
        {"test_first[2xgloo]", "test_second[2xgloo]"},
    ),
    "hook of a conftest": ("conftest.py", "key=shared.order", "key=shared.order, reverse=True", ALL),
    "function that a hook calls": ("shared.py", "return 0", "return 1", ALL),
    "test": ("test_worlds.py", "world.rank == 1", "world.rank == 0", {"test_rank_one[2xgloo]"}),
    "data file": ("data.txt", "1", "2", {"test_data"}),
    "hidden data file": (".data/one.json", "1", "2", {"test_hidden"}),
    "function of a program": ("program.py", '"done"', '"more"', {"test_program"}),
    "function of a fork": ("other.py", "in_fork():\n    return 0", "in_fork():\n    return 1", {"test_fork"}),
    "function of a thread": (
        "other.py",
        "in_thread():\n    return 0",
        "in_thread():\n    return 1",
        {"test_thread"},
    ),
    "function of a rank of a class": (
        "other.py",
        "in_class():\n    return 0",
        "in_class():\n    return 1",
        {"test_class"},
    ),
}
"""Every edit of Python selects the test that starts a program, too: what the program calls is unknown."""


def git(folder: Path, *words: str) -> str:
    environ = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": os.devnull}
    ended = subprocess.run(
        ["git", *words], cwd=folder, env=environ, check=True, capture_output=True, text=True
    )
    return ended.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "change")


def make_project(lab: Lab, files: dict[str, str]) -> None:
    """A repository with a branch, and the record of all tests."""
    for name, text in files.items():
        path = lab.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    git(lab.folder, "init", "--quiet", "--initial-branch", "main")
    commit(lab.folder)
    git(lab.folder, "switch", "--quiet", "--create", "work")
    ended = lab.run("run", ".", "--changed")
    assert ended.exit_code == 0, ended.output
    assert "every test runs, because there is no record disttest-changed.json yet" in ended.output


def reasons(lab: Lab, *options: str, exit_code: int = 0) -> dict[str, str]:
    """Run what a change affects; the reason for each test that is no canary."""
    ended = lab.run("run", ".", "--changed", *options)
    assert ended.exit_code == exit_code, ended.output
    found = {t.test.nodeid.rpartition("::")[2]: t.test.data["changed"]["why"] for t in ended.run.tests}
    return {name: why for name, why in found.items() if why != "canary"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    lab = Lab(tmp_path_factory.mktemp("recorded"))
    make_project(lab, FILES)
    return lab.folder


@pytest.fixture
def project(recorded, lab) -> Lab:
    shutil.copytree(recorded, lab.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("results"))
    return lab


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_selects_the_tests_that_use_it(project, edit):
    name, old, new, wanted = EDITS[edit]
    path = project.folder / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    found = reasons(project)

    by_program = {"test_program"} if name.endswith(".py") else set()
    assert set(found) == {*wanted, *by_program}, found
    assert set(found.values()) <= {"affected"}


def test_new_failed_renamed_and_deleted_tests(project):
    folder = project.folder
    git(folder, "mv", "test_alone.py", "test_renamed.py")
    (folder / "test_new.py").write_text("def test_new():\n    assert False\n")
    (folder / "cases" / "two.txt").write_text("2")
    assert reasons(project, exit_code=1) == {
        "test_new": "new",
        "test_folder": "affected",
        "test_program": "affected",
    }

    commit(folder)
    (folder / "test_new.py").write_text("def test_other():\n    pass\n")
    assert reasons(project, "HEAD") == {"test_other": "new", "test_program": "affected"}
    (folder / "test_new.py").unlink()
    assert reasons(project, "HEAD") == {"test_program": "affected"}


def test_what_was_left_out_is_said_and_did_not_pass(project):
    ended = project.run("run", ".", "--changed", "--canaries", "0.15")

    assert ended.exit_code == 0, ended.output
    assert "2 tests selected (2 canary), 11 left out, which saves" in ended.output
    assert "without --changed every test runs" in ended.output
    assert sum(test.final.outcome is Outcome.PASSED for test in ended.run.tests) == len(ended.run.tests) == 2
    data = msgspec.json.decode((ended.results / "results.json").read_bytes())["invocation"]["data"]["changed"]
    assert data["left_out"] == 11
    assert data["saved_s"] > 0


def test_a_canary_that_fails_is_a_miss(project):
    # git ignores this file, and the record does not see whether a file exists.
    text = "import os\n\ndef test_alone():\n    assert not os.path.exists('results/../broken.log')\n"
    (project.folder / ".gitignore").write_text("results*\n*.log\n__pycache__\n.pytest_cache\n")
    (project.folder / "test_alone.py").write_text(text)
    commit(project.folder)
    project.run("run", ".", "--changed")
    (project.folder / "broken.log").touch()
    ended = project.run("run", ".", "--changed", "HEAD", "--canaries", "1")

    assert ended.exit_code == 1, ended.output
    assert "miss: test_alone.py::test_alone failed, although no part that it uses changed" in ended.output
    record = msgspec.json.decode((project.folder / "disttest-changed.json").read_bytes(), type=Record)
    assert [miss.test for miss in record.misses] == ["test_alone.py::test_alone"]
    assert reasons(project, "HEAD", exit_code=1) == {"test_alone": "failed last time"}


def test_a_test_that_did_not_run_to_its_end_runs_again(project):
    (project.folder / "test_alone.py").write_text(
        "import os\nimport pytest\n\n"
        "def test_alone():\n"
        "    if os.environ.get('ENDS'):\n        pytest.exit('the end')\n"
        "    if not os.environ.get('WIDE'):\n        pytest.skip('needs a wide machine')\n"
    )
    commit(project.folder)
    words = ("run", "test_alone.py", "--changed", "HEAD", "--canaries", "0")
    project.run(*words, ENDS="1")
    outputs = [project.run(*words, **given).output for given in ({}, {"WIDE": "1"}, {})]

    assert "1 test selected (1 failed last time), 0 left out" in outputs[0]
    assert "1 test selected (1 skipped last time), 0 left out" in outputs[1]
    assert "0 tests selected (none), 1 left out" in outputs[2]


def test_a_record_that_cannot_be_used_leaves_nothing_out(project):
    path = project.folder / "disttest-changed.json"
    whole = path.read_bytes()
    for content, why in (
        (whole[:-9], "is damaged"),
        (b'{"version":9}', "is of version 9, and this disttest reads 2"),
    ):
        path.write_bytes(content)
        ended = project.run("run", "test_alone.py", "--changed")
        assert ended.exit_code == 0, ended.output
        assert f"disttest-changed.json {why}" in ended.output
    assert path.read_bytes() == b'{"version":9}'


@pytest.mark.parametrize(
    ("words", "given", "named"),
    [
        ((), {"NCCL_DEBUG": "INFO"}, "variable NCCL_DEBUG: none -> "),
        ((), {"TORCHDYNAMO_DISABLE": "1"}, "variable TORCHDYNAMO_DISABLE: none -> "),
        (("--seed", "7"), {}, "option seed: none -> "),
        (("--", "-W", "error"), {}, "pytest's arguments: "),
    ],
)
def test_another_environment_runs_everything(project, words, given, named):
    ended = project.run("run", "test_alone.py", "--changed", *words, **given)

    assert "1 test selected (1 environment), 0 left out" in ended.output
    assert named in ended.output


def test_the_default_branch_needs_a_revision(project):
    git(project.folder, "switch", "--quiet", "main")
    ended = project.run("run", ".", "--changed")
    assert ended.exit_code == 4, ended.output
    assert "--changed without a revision on the default branch (main)" in ended.output

    ended = project.run("run", "--changed", "no-such-thing")
    assert ended.exit_code == 4, ended.output
    assert "git knows no revision 'no-such-thing' here" in ended.output


def test_a_plan_has_only_the_selected_tests(project):
    path = project.folder / "lib.py"
    path.write_text(path.read_text().replace("return 1", "return 11"))
    ended = project.run("plan", ".", "--shards", "1", "--changed", "--canaries", "0")

    assert ended.exit_code == 0, ended.output
    plan = msgspec.json.decode((project.folder / "plan.json").read_bytes())
    names = {test["nodeid"] for shard in plan["shards"] for test in shard["tests"]}
    assert names == {"test_worlds.py::test_rank_one[2xgloo]", "test_others.py::test_program"}


def test_a_changed_text_selects_its_doctests(lab):
    text = ">>> from lib import two\n>>> two()\n2\n"
    (lab.folder / "guide.rst").write_text(text)
    lab.write(lib="def two():\n    return 2\n", test_one="def test_one():\n    pass\n")
    git(lab.folder, "init", "--quiet")
    commit(lab.folder)
    words = ("run", ".", "--changed", "HEAD", "--canaries", "0", "--", "--doctest-glob=*.rst")
    lab.run(*words)
    (lab.folder / "guide.rst").write_text(text.replace("\n2", "\n3"))
    ended = lab.run(*words)
    assert ended.exit_code == 1, ended.output
    assert "1 test selected (1 affected), 1 left out" in ended.output


def test_files_of_submodules_belong_to_the_project(lab):
    inner = lab.folder / "inner"
    inner.mkdir()
    (inner / "lib.py").touch()
    for folder in (inner, lab.folder):
        git(folder, "init", "--quiet")
    commit(inner)
    git(lab.folder, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", "./inner", "sub")
    assert {"sub/lib.py", ".gitmodules"} <= {*Repository(lab.folder).files()}


def test_the_page_says_what_is_printed(lab):
    check_page("docs/run-less.md", "Run less", lab)
