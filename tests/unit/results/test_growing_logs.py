"""Logs that are read while they grow: what is left out is counted to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttest.results.growing_logs import GrowingLog, GrowingLogs


@pytest.fixture
def text() -> str:
    return "".join(f"line {number}\n" for number in range(100))


def opened(folder: Path, text: str) -> GrowingLog:
    (folder / "logs").mkdir()
    (folder / "logs/rank3.log").write_text(text)
    (log,) = GrowingLogs("logs").found_in(folder)
    return log


@pytest.mark.parametrize("newest", [10, 20, 24, 25, 399])
def test_what_is_left_out_and_what_is_read_are_all_there_is(tmp_path: Path, text: str, newest: int) -> None:
    log = opened(tmp_path, text)
    left_out = log.skip_all_but(newest)
    lines = [line.decode() for line in log.news()]
    assert text[left_out:].splitlines() == lines
    assert len(text) - left_out <= newest
    assert text[left_out - 1] == "\n", "no line is cut"


def test_a_line_that_fits_exactly_is_kept(tmp_path: Path, text: str) -> None:
    log = opened(tmp_path, text)
    assert log.skip_all_but(len("line 98\nline 99\n")) == len(text) - len("line 98\nline 99\n")
    assert [b"line 98", b"line 99"] == log.news()


def test_a_line_that_is_longer_than_what_is_kept_is_left_out(tmp_path: Path) -> None:
    log = opened(tmp_path, "x" * 100 + "\n")
    assert log.skip_all_but(50) == 101
    assert [] == log.news() == log.rest()
