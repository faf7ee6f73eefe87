"""Log files of the next test, made before it begins."""

from __future__ import annotations

import pytest

from disttest.results.directory import Home
from disttest.runtime.world.logs import LogStore, RankLog

FIRST, SECOND = (tuple(f"logs/{test}/attempt-1/rank{rank}.log" for rank in range(2)) for test in "ab")


@pytest.fixture
def room(tmp_path):
    return LogStore(Home(path=str(tmp_path)), limit=1 << 20)


def files(tmp_path):
    return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}


def test_they_are_there_when_their_test_begins_and_stay(room, tmp_path):
    room.claim(FIRST)
    room.prepare(SECOND)
    room.claim(SECOND)
    room.withdraw()

    assert {*FIRST, *SECOND} <= files(tmp_path)


def test_a_test_that_does_not_begin_leaves_nothing(room, tmp_path):
    room.claim(FIRST)
    before = files(tmp_path)
    room.prepare(SECOND)

    room.withdraw()

    assert before == files(tmp_path)


def test_what_an_earlier_attempt_has_written_is_not_taken_back(room, tmp_path):
    retry = tuple(log.replace("attempt-1", "attempt-2") for log in FIRST)
    room.claim(FIRST)
    room.prepare(retry)
    (tmp_path / retry[0]).write_text("somebody else's")

    room.withdraw()

    assert {*FIRST, retry[0]} <= files(tmp_path)
    assert retry[1] not in files(tmp_path)


def test_only_who_needs_them_hears_that_they_can_not_be_made(room, tmp_path):
    (tmp_path / "logs").touch()
    room.prepare(SECOND)

    with pytest.raises(OSError, match="logs"):
        room.claim(FIRST)


def test_a_file_in_the_place_of_its_folder_makes_a_log_empty_and_fails_no_test(tmp_path):
    (tmp_path / "logs").touch()
    log = RankLog(tmp_path / "logs" / "rank0.log", limit=1 << 20)

    log.trim()
    log.finish()

    assert log.tail(100) == ""
