"""What ranks of a node print while they run: in order, whole lines, and no more than the channel is meant to carry."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from disttest.extras.cluster.node.live_lines import A_SECOND, AT_ONCE, LiveLines
from disttest.extras.cluster.protocol.wire import RankOutput

FOLDER = "logs/test/attempt-1"
LINE = "x" * 63 + "\n"


class Clock:
    """Stands still until it is moved."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Ranks:
    """Ranks that print, and what is sent of it."""

    def __init__(self, results: Path, *, asked: bool = True) -> None:
        self._folder = results / FOLDER
        self._folder.mkdir(parents=True)
        self.clock = Clock()
        self.live = LiveLines(results, self.clock, asked=asked)

    def write(self, rank: int, text: str) -> None:
        with (self._folder / f"rank{rank}.log").open("a") as log:
            log.write(text)


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    made = Ranks(tmp_path)
    made.live.begin("test", FOLDER)
    return made


def shown(outputs: Iterable[RankOutput]) -> list[tuple[int, str]]:
    return [(output.rank, line) for output in outputs for line in output.lines]


def test_lines_come_as_soon_as_they_are_whole_and_what_has_no_end_comes_last(ranks: Ranks) -> None:
    ranks.write(1, "one\ntw")
    ranks.write(0, "zero\n")
    assert [(0, "zero"), (1, "one")] == shown(ranks.live.poll())
    ranks.write(1, "o\nthr")
    assert [(1, "two")] == shown(ranks.live.poll())
    assert [] == shown(ranks.live.poll())
    assert [(1, "thr")] == shown(ranks.live.end("test"))
    assert not ranks.live.is_following


def test_a_rank_that_floods_sends_its_newest_lines_and_how_much_is_left_out(ranks: Ranks) -> None:
    ranks.write(0, LINE * (AT_ONCE // len(LINE)))
    ranks.write(1, "quiet\n")
    assert AT_ONCE // len(LINE) + 1 == len(shown(ranks.live.poll()))

    ranks.write(0, f"{LINE * 10_000}newest\n")
    assert [] == shown(ranks.live.poll()), "nothing before it may send a second's worth again"
    ranks.write(1, "not disturbed\n")
    assert [(1, "not disturbed")] == shown(ranks.live.poll())
    ranks.clock.now_s += 1
    mark, *lines = shown(ranks.live.poll())
    left_out = 10_000 * len(LINE) + len("newest\n") - sum(len(line) + 1 for _, line in lines)
    assert (0, f"[disttest: {left_out:,} bytes left out; a rank on a node shows 16 KiB a second]") == mark
    assert (0, "newest") == lines[-1]
    assert A_SECOND - len(LINE) < sum(len(line) + 1 for _, line in lines) <= A_SECOND
    assert {LINE.rstrip()} == {line for _, line in lines[:-1]}, "no line is cut"


def test_the_last_lines_of_a_rank_that_floods_are_shown_when_it_is_done(ranks: Ranks) -> None:
    ranks.write(0, LINE * (AT_ONCE // len(LINE)))
    list(ranks.live.poll())
    ranks.write(0, f"{LINE * 10_000}without an end")
    mark, *lines = shown(ranks.live.end("test"))
    assert "bytes left out" in mark[1]
    assert (0, "without an end") == lines[-1]
    assert sum(len(line) + 1 for _, line in lines) <= A_SECOND + 1


def test_a_line_that_was_begun_before_what_is_left_out_is_left_out_too(ranks: Ranks) -> None:
    ranks.write(0, f"{LINE * (AT_ONCE // len(LINE))}begun")
    list(ranks.live.poll())
    ranks.clock.now_s += 1
    ranks.write(0, LINE * 10_000)
    mark, *lines = shown(ranks.live.poll())
    assert {LINE.rstrip()} == {line for _, line in lines}
    sent = sum(len(line) + 1 for _, line in lines)
    assert f"{len('begun') + 10_000 * len(LINE) - sent:,} bytes left out" in mark[1]


def test_nothing_is_sent_where_nobody_asked(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, asked=False)
    ranks.live.begin("test", FOLDER)
    ranks.write(0, "unseen\n")
    assert not ranks.live.is_following
    assert [] == [*ranks.live.poll(), *ranks.live.end("test")]
