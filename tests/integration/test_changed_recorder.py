"""The parts that each test of one process uses, recorded by a plain session of pytest."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

from disttest.extras.changed.recorder import read_lines

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="coverage or a debugger has precedence")

RUN = """
import sys, pathlib, pytest
from disttest.extras.changed.recorder import TestRecorder
recorder = TestRecorder(sys.argv[1], pathlib.Path(sys.argv[2]))
sys.exit(pytest.main(["-q", "-p", "no:disttest", "-p", "no:cacheprovider", "."], plugins=[recorder]))
"""


def recorded(folder: Path, files: dict[str, str]) -> dict[str, set[tuple[str, str]]]:
    """Run the tests in files; return the parts that each uses."""
    project, lines = folder / "project", folder / "lines"
    lines.mkdir()
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(textwrap.dedent(text))
    argv = [sys.executable, "-c", RUN, str(project), str(lines)]
    ended = subprocess.run(argv, cwd=project, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    used = defaultdict(set)
    for test, units in read_lines(lines):
        used[test.rpartition("::")[2]].update(units)
    return used


FIXTURES = """
import pytest

def inner_part(): ...
def outer_part(): ...
def other_part(): ...

@pytest.fixture(scope="session")
def inner():
    inner_part()

@pytest.fixture(scope="module")
def outer(request):
    outer_part()
    request.getfixturevalue("inner")

class TestOther:
    @pytest.fixture(scope="class")
    def outer(self):
        other_part()

    def test_other(self, outer): ...

def test_first(request):
    request.getfixturevalue("inner")

def test_second(request):
    request.getfixturevalue("outer")

def test_third(request):
    request.getfixturevalue("outer")

def test_fourth(outer): ...
"""


def test_every_test_uses_what_the_fixtures_that_it_shares_used(tmp_path):
    used = recorded(tmp_path, {"test_a.py": FIXTURES})
    parts = {test: {part for _, part in units if part.endswith("_part")} for test, units in used.items()}
    both = {"inner_part", "outer_part"}
    assert parts == {
        "test_other": {"other_part"},
        "test_first": {"inner_part"},
        "test_second": both,
        "test_third": both,
        "test_fourth": both,
    }
