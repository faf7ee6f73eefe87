"""A history over real runs: their commits, what reports show of it, and a writer that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typed import check_page

from disttest.extras.history.git_facts import facts_of_git
from disttest.extras.history.queries import read_past_runs, read_points
from disttest.extras.history.store import reading

TESTS = """
    import os

    def test_steady():
        pass

    def test_shaky():
        assert not os.path.exists("broken")
"""
IDENTITY = {f"GIT_{who}_{what}": f"{who}@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *words: str) -> str:
    environ = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": os.devnull}
    ended = subprocess.run(
        ["git", *words], cwd=folder, env=environ, check=True, capture_output=True, text=True
    )
    return ended.stdout.strip()


def committed(folder: Path, message: str) -> str:
    git(folder, "add", "test_mine.py")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.mark.slow("runs the tests at several commits")
def test_a_failure_is_shown_with_its_first_commit(lab):
    lab.write(test_mine=TESTS)
    git(lab.folder, "init", "--quiet", "--initial-branch", "trunk")
    git(lab.folder, "remote", "add", "origin", "https://token@example.org/Team/mine.git")
    commits = []
    for number in range(3):
        commits.append(committed(lab.folder, f"{number}"))
        if number == 1:
            (lab.folder / "broken").touch()
        ended = lab.run("run", "test_mine.py", "--history", "h.sqlite")
        assert ended.exit_code == (number > 0), ended.output
        assert lab.run("history", "add", "results", "--history", "h.sqlite").exit_code == 0

    streak = f"red since {commits[1][:10]} (2 runs), last passed at {commits[0][:10]}"
    assert f"test_mine.py::test_shaky: {streak}  ▁█" in ended.output
    assert streak in (ended.results / "report.html").read_text()
    shown = lab.run("history", "show", "shaky", "--history", "h.sqlite").output
    assert f"▁██  failed in 2 of 3 runs: 66.7 % (20.8 to 93.9 %)\n  {streak}" in shown
    with reading(lab.folder / "h.sqlite") as connection:
        assert connection.execute("SELECT * FROM fact").fetchall() == [("project", "example.org/team/mine")]
    (past, *_) = read_past_runs(lab.folder / "h.sqlite")
    assert (past.commit, past.branch) == (commits[0], "trunk")


def test_git_says_whether_files_differ_from_the_commit(tmp_path):
    assert not facts_of_git(tmp_path).commit
    git(tmp_path, "init", "--quiet", "--initial-branch", "trunk")
    (tmp_path / "test_mine.py").write_text("")
    assert not facts_of_git(tmp_path).commit
    commit = committed(tmp_path, "first")
    (tmp_path / "untracked").touch()
    assert (facts_of_git(tmp_path).commit, facts_of_git(tmp_path).is_dirty) == (commit, False)
    (tmp_path / "test_mine.py").write_text("changed")
    assert facts_of_git(tmp_path).is_dirty
    git(tmp_path, "checkout", "--quiet", "--detach")
    assert facts_of_git(tmp_path).branch == ""


KILLED = """
import os, signal, sys
from pathlib import Path
from disttest.extras.history.store import writing

with writing(Path(sys.argv[1])) as connection:
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("UPDATE run SET exit_code = 77")
    connection.executemany("INSERT INTO message (text) VALUES (?)", ((f"{n}" * 100,) for n in range(5000)))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_the_file_as_it_was(lab):
    lab.write(test_mine=TESTS)
    lab.run("run", "test_mine.py")
    lab.run("history", "add", "results", "--history", "h.sqlite")
    file = lab.folder / "h.sqlite"
    before = file.read_bytes()
    subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert file.read_bytes() != before, "it had begun to write"

    assert [point.tests for point in read_points(file)] == [2]
    with reading(file) as connection:
        assert connection.execute("SELECT exit_code, (SELECT count(*) FROM message) FROM run").fetchall() == [
            (0, 0)
        ]


def test_a_history_that_cannot_be_read_is_refused_before_tests_run(lab):
    lab.write(test_mine=TESTS)
    (lab.folder / "h.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    ended = lab.run("run", "test_mine.py", "--history", "h.sqlite")

    assert ended.exit_code == 4
    assert "is damaged" in ended.output
    assert not ended.results.exists()


def test_the_page_says_what_is_printed(lab):
    check_page("docs/history.md", "Keep the history of your tests", lab)
