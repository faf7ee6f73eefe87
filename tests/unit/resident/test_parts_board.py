"""What a parent learns from its runs."""

from __future__ import annotations

import sys

import pytest

from disttest.extras.resident.parent import PartsBoard

BROKEN, THERE = "broken_part_of_a_test", "part_of_a_test"


@pytest.fixture
def board(tmp_path, monkeypatch):
    (tmp_path / f"{THERE}.py").touch()
    (tmp_path / f"{BROKEN}.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield PartsBoard()
    sys.modules.pop(THERE, None)


def noted(board, monkeypatch, *names):
    """As a fork would that has imported these."""
    with monkeypatch.context() as patched:
        for name in names:
            patched.setitem(sys.modules, name, object())
        board.note([THERE, "never_imported", BROKEN])


def test_what_a_fork_has_imported_is_imported_once(board, monkeypatch):
    assert board.missing() == ()
    noted(board, monkeypatch, THERE)
    assert board.missing() == (THERE,)
    board.import_missing()
    assert THERE in sys.modules and board.missing() == () and board.imported == (THERE,)


def test_what_cannot_be_imported_is_not_tried_again(board, monkeypatch):
    noted(board, monkeypatch, BROKEN)
    board.import_missing()
    assert board.missing() == () and BROKEN not in sys.modules
