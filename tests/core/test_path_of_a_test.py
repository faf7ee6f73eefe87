"""The design page lists the files between the shell and a test; a real run's frames decide whether it is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import disttest

PACKAGE = Path(disttest.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "design" / "life-of-a-test.md"
MOST = 12
"""Files that a reader opens, at most, to follow a test from the command to its function."""
FRAMES = """
    import json
    import sys

    def files():
        frame, found = sys._getframe(1), []
        while frame is not None:
            found.append(frame.f_code.co_filename)
            frame = frame.f_back
        return found[::-1]

    def write(name):
        with open(name, "w") as file:
            json.dump(files(), file)
"""
COMMAND = """
    import runpy
    import sys

    import frames

    def note(event, arguments):
        if event == "subprocess.Popen" and "pytest" in arguments[1]:
            frames.write("command.json")

    sys.addaudithook(note)
    sys.argv = ["disttest", "run", "test_x.py"]
    runpy.run_module("disttest", run_name="__main__", alter_sys=True)
"""
TEST = """
    import frames
    import pytest

    @pytest.mark.world_size(2)
    def test_x(world):
        if world.rank == 0:
            frames.write("rank.json")
"""


def test_the_page_lists_the_files_in_the_order_of_the_calls(lab) -> None:
    lab.write(frames=FRAMES, command=COMMAND, test_x=TEST)
    ended = subprocess.run(
        [sys.executable, "command.py"],
        cwd=lab.folder,
        env=lab.environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert 0 == ended.returncode, ended.stdout + ended.stderr
    # Worlds and ranks are forks: the frames of a test go back to the start of the pytest process.
    passed = [
        *json.loads((lab.folder / "command.json").read_text()),
        *json.loads((lab.folder / "rank.json").read_text()),
    ]
    ours = [str(Path(file).relative_to(PACKAGE)) for file in passed if Path(file).is_relative_to(PACKAGE)]
    files = list(dict.fromkeys(ours))
    section = PAGE.read_text().partition("## From the shell to the test\n")[2].partition("\n## ")[0]
    assert files == re.findall(r"^\| \d+ \| `(.+?)` \|", section, flags=re.MULTILINE)
    assert len(files) <= MOST
