"""tools/foreign_projects.py: what it makes of what the two ways to run a suite have left."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = [
    {"collected": ["test_a"]},
    {"test": "test_a", "file": "t.py", "outcome": "passed"},
    {"test": "test_a", "file": "t.py", "outcome": "failed"},
    {"test": "test_b[2xgloo-1]", "file": "t.py", "outcome": "passed"},
    {"test": "test_c[2xgloo]", "file": "t.py", "outcome": "skipped"},
    {"broken": "u.py", "message": "no"},
]


@pytest.fixture(scope="module")
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
        yield importlib.import_module("foreign_projects")
    sys.modules.pop("foreign_projects")


def test_ranks_have_the_worst_verdict_and_launcher_mode_the_names_of_its_tests(tool: Any) -> None:
    assert {
        "t.py::test_a": "failed",
        "t.py::test_b[1]": "passed",
        "t.py::test_c": "skipped",
        "u.py": tool.BROKEN,
    } == tool.verdicts_of(map(json.dumps, LINES))


def test_what_one_way_does_not_have_differs(tool: Any) -> None:
    own, ours = tool.WayRun({"a": "passed", "b": "failed"}, 10, 4), tool.WayRun({"a": "passed"}, 5, 1)

    assert ["b: failed by its own way, missing by ours"] == tool.differences(own, ours)
    suite = tool.Suite(style="forks", paths=["t"], ours=["--isolate-files"])
    cells = "p 1 | forks | nothing | --isolate-files | 1 passed, 1 failed; 1 differ"
    assert f"| {cells} | 10 s, 4 CPU s | 5 s, 1 CPU s | 2.0, 4.0 |" == tool.row(
        tool.Project("p", "1", "sdist", (), ()), suite, own, ours
    )


def test_every_project_of_the_list_can_be_read(tool: Any) -> None:
    for entry in tomllib.loads(tool.PROJECTS.read_text())["project"]:
        assert [tool.Suite(**suite) for suite in tool.Project(**entry).suite]


def test_the_table_replaces_the_one_before(tool: Any, tmp_path: Path) -> None:
    page = tmp_path / "adopt.md"
    page.write_text(f"before\n{tool.BEGIN}\nold\n{tool.END}\nafter\n")

    tool.write_section(page, tool.BEGIN, tool.END, ["new"])

    assert f"before\n{tool.BEGIN}\nnew\n{tool.END}\nafter\n" == page.read_text()


def test_a_page_without_both_markers_is_left_as_it_is(tool: Any, tmp_path: Path) -> None:
    page = tmp_path / "adopt.md"
    page.write_text(f"before\n{tool.BEGIN}\nold\nafter\n")

    with pytest.raises(ValueError, match=r"adopt\.md"):
        tool.write_section(page, tool.BEGIN, tool.END, ["new"])

    assert f"before\n{tool.BEGIN}\nold\nafter\n" == page.read_text()
