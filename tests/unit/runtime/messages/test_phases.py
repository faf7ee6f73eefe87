"""The bytes in which ranks say where they are."""

from __future__ import annotations

import os

import pytest

from disttest.runtime.messages.phases import PHASES, PhaseBoard, PhaseCell


def test_each_rank_has_its_own_place_and_a_test_begins_with_setup():
    board = PhaseBoard(3)
    cells = [PhaseCell(board.path, place) for place in range(3)]
    for cell, phase in zip(cells, PHASES, strict=True):
        cell.write(phase)
    assert PHASES == tuple(board.read(place) for place in range(3))

    board.reset()

    assert {"setup"} == {board.read(place) for place in range(3)}


def test_an_expected_failure_is_said_with_the_phase_and_nothing_is_known_before_it_begins():
    board = PhaseBoard(3)
    for place, xfail in enumerate((True, False)):
        PhaseCell(board.path, place).write("call", xfail=xfail)

    assert [True, False, True] == [board.expects_failure(place) for place in range(3)]
    assert ["call", "call", "setup"] == [board.read(place) for place in range(3)]


@pytest.mark.parametrize("by_assertion", [True, False])
def test_whether_an_assertion_is_expected_is_said_apart(by_assertion):
    board = PhaseBoard(2)
    PhaseCell(board.path, 0).write("teardown", xfail=True, by_assertion=by_assertion)

    assert ("teardown", True, by_assertion) == (
        board.read(0),
        board.expects_failure(0),
        board.expects_assertion(0),
    )
    assert board.expects_assertion(1)


def test_a_rank_that_is_debugged_says_so_and_keeps_its_phase():
    board = PhaseBoard(2)
    cell = PhaseCell(board.path, 1)
    cell.write("call", xfail=True)
    assert not board.is_held(1)

    cell.hold(True)
    assert [False, True] == [board.is_held(place) for place in range(2)]
    assert ("call", True) == (board.read(1), board.expects_failure(1))
    cell.write("teardown")
    board.reset()
    assert board.is_held(1)
    cell.write("call", xfail=True)
    cell.hold(False)
    assert not board.is_held(1)
    assert ("call", True) == (board.read(1), board.expects_failure(1))


@pytest.mark.parametrize("byte", [3, 255])
def test_nonsense_is_read_as_some_phase(byte):
    board = PhaseBoard(1)
    with board.path.open("r+b") as file:
        file.write(bytes([byte]))
    assert board.read(0) in PHASES


def test_a_fork_of_a_rank_does_not_write_for_it(monkeypatch):
    after_fork = []
    monkeypatch.setattr(os, "register_at_fork", lambda *, after_in_child: after_fork.append(after_in_child))
    board = PhaseBoard(1)
    cell = PhaseCell(board.path, 0)
    cell.write("call")

    after_fork[0]()
    cell.write("teardown")

    assert "call" == board.read(0)


def test_a_world_that_is_gone_is_an_error():
    board = PhaseBoard(1)
    path = board.path.with_name("999999")
    with pytest.raises(OSError, match="999999"):
        PhaseCell(path, 0)
