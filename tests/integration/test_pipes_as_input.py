"""A pipe without a writer in place of a file that disttest reads: nothing waits for it."""

from __future__ import annotations

import os

import pytest

GOOD = "def test_passes(): pass"
COMMANDS = {
    "plan": (("run", "test_good.py", "--plan", "pipe", "--shard", "1"), 4, "pipe is not a plan"),
    "expect": (("run", "test_good.py", "--expect", "pipe"), 4, "pipe names no test"),
    "a device": (("run", "test_good.py", "--expect", "/dev/zero"), 4, "neither a regular file nor a pipe"),
    "timings": (("run", "test_good.py", "--timings", "pipe"), 0, "1 passed"),
    "results": (("run", "test_good.py", "--results", "pipe"), 4, "cannot be used: Not a directory"),
    "merge": (("merge", "pipe"), 4, "no directory pipe"),
    "explain": (("explain", "folder"), 4, "not a regular file"),
}


@pytest.fixture
def pipes(lab):
    os.mkfifo(lab.folder / "pipe")
    (lab.folder / "folder").mkdir()
    os.mkfifo(lab.folder / "folder" / "events.jsonl")
    return lab.write(test_good=GOOD)


@pytest.mark.parametrize("case", COMMANDS)
def test_no_command_waits_for_a_writer(pipes, case):
    words, code, said = COMMANDS[case]
    ended = pipes.run(*words, limit_s=30)

    assert code == ended.exit_code, ended.output
    assert said in " ".join(ended.output.split())


def test_a_project_file_that_is_a_pipe_is_none(lab):
    os.mkfifo(lab.folder / "pyproject.toml")
    lab.write(test_good=GOOD)

    assert 0 == lab.run("--version", limit_s=30).exit_code
    ended = lab.run("run", "test_good.py", limit_s=30)
    assert 0 == ended.exit_code, ended.output
