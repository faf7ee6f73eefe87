"""Tests that are marked thorough, and variants of a case, run only with --thorough."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import thorough
from thorough import Thorough, is_wanted, variants, want_all


@pytest.fixture(autouse=True)
def not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thorough, "_wanted", False)


def collected(*marks: pytest.Mark | None) -> tuple[list[str], list[str], list[str]]:
    """Tests that are kept, tests that are deselected, and the lines of the summary; one test for each mark."""
    items = [
        SimpleNamespace(nodeid=str(number), get_closest_marker=lambda name, mark=mark: mark)
        for number, mark in enumerate(marks)
    ]
    deselected: list[SimpleNamespace] = []
    lines: list[str] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    plugin = Thorough()
    plugin.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    return [each.nodeid for each in items], [each.nodeid for each in deselected], lines


def test_they_are_left_out_and_counted() -> None:
    marked = pytest.mark.thorough("another one shows it").mark

    assert collected(None, marked, marked) == (
        ["0"],
        ["1", "2"],
        ["2 tests run only with --thorough (make test-all THOROUGH=1)"],
    )
    assert collected(None) == (["0"], [], [])
    assert variants("a", "b") == ("a",)


def test_all_run_if_they_are_wanted() -> None:
    want_all()

    assert collected(None, pytest.mark.thorough("…").mark) == (["0", "1"], [], [])
    assert variants("a", "b") == ("a", "b")
    assert is_wanted()


def test_a_mark_without_a_reason_is_an_error() -> None:
    with pytest.raises(pytest.UsageError, match=r"0: @pytest.mark.thorough takes one"):
        collected(pytest.mark.thorough.mark)
