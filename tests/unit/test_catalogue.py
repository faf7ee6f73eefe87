"""The scripts that count covered behaviours and write the page of the suites."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module


def section(script, *, ids, accounted=()):
    return script("catalogue").Section(
        name="s", title="S", ids=dict.fromkeys(ids, "a title"), accounted=dict(accounted)
    )


def test_an_id_with_neither_test_nor_reason_is_a_fault(script):
    faults = script("catalogue").faults_of(section(script, ids=["CD-001", "CD-002"]), {"CD-001": ["t"]})
    assert faults == ["CD-002 has neither a test nor a reason: a title"]


def test_an_empty_reason_is_none(script):
    faults = script("catalogue").faults_of(section(script, ids=["CD-001"], accounted=[("CD-001", "")]), {})
    assert len(faults) == 1


def test_a_reason_for_what_is_tested_is_a_fault(script):
    one = section(script, ids=["CD-001"], accounted=[("CD-001", "why")])
    assert script("catalogue").faults_of(one, {"CD-001": ["t.py::x"]}) == [
        "CD-001 has a reason and a test as well (t.py::x): drop one"
    ]


def test_a_reason_for_what_does_not_exist_is_a_fault(script):
    one = section(script, ids=[], accounted=[("CD-999", "why")])
    assert script("catalogue").faults_of(one, {}) == ["CD-999 has a reason and does not exist"]


def test_marks_are_read_from_functions_classes_modules_parameters_and_comments(script, tmp_path, monkeypatch):
    index = script("suite_index")
    monkeypatch.setattr(index, "ROOT", tmp_path)
    file = tmp_path / "test_x.py"
    file.write_text(
        "pytestmark = [pytest.mark.covers('CD-001')]\n"
        "@pytest.mark.covers('CD-002')\n"
        "class TestIt:\n"
        "    @pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.covers('CD-003'))])\n"
        "    def test_a(self, a): 'Says what.'\n"
        "# cov" + "ers: HN-001, HN-002a\n"
    )
    assert sorted(index.covered_ids(file)) == ["CD-001", "CD-002", "CD-003", "HN-001", "HN-002a"]
    (function,) = index.functions_of(file)
    assert (function.nodeid, function.doc) == ("test_x.py::TestIt::test_a", "Says what.")


@pytest.mark.slow("reads all suites")
def test_every_test_of_the_suites_says_what_it_asserts(script):
    index = script("suite_index")
    functions = [f for path in index.test_files("suites") for f in index.functions_of(path)]
    folders = {path.parent.name for path in index.ROOT.glob("suites/*/__init__.py")}
    assert {function.file.parent.name for function in functions} == folders
    assert [function.nodeid for function in functions if not function.doc.strip()] == []


@pytest.mark.slow("reads all suites")
@pytest.mark.parametrize("page", ["suites", "verdicts", "command", "marks", "features", "messages"])
def test_a_page_that_is_made_is_up_to_date(page, script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{page}_doc.py", "--check"])
    assert script(f"{page}_doc").main() == 0, capsys.readouterr().out
