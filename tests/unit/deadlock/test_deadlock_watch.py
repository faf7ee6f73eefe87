"""What a look at the board costs while ranks are busy, who counts as busy, and when stacks confirm what the board says."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from disttest.limits import TICK_S
from disttest.plugins.deadlock import watch as deadlock_watch
from disttest.plugins.deadlock.watch import DeadlockWatch, confirm_rest, confirm_waits

RANKS = 4


class Board:
    """Slots that change when told."""

    path = "of the board"

    def __init__(self) -> None:
        self.version = 0

    def slot(self, number: int) -> bytes:
        return b"%d %d" % (number, self.version)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch):
    """A board, a function that looks at it once, the slots that were read, and what processes spend between looks."""
    now_s = 0.0
    read: list[bytes] = []
    spends: dict[int, int] = {}

    def look() -> None:
        nonlocal now_s
        now_s += TICK_S
        watch.look(attempt)

    ranks = [SimpleNamespace(rank=rank, pid=1000 + rank) for rank in range(RANKS)]
    attempt: Any = SimpleNamespace(ranks=ranks, living=lambda: ranks, failed_s=None)
    monkeypatch.setattr(deadlock_watch, "monotonic", lambda: now_s)
    monkeypatch.setattr(deadlock_watch, "cpu_ticks", lambda pid: round(now_s / TICK_S) * spends.get(pid, 20))
    monkeypatch.setattr(
        deadlock_watch, "read_slot", lambda slot: read.append(slot) or SimpleNamespace(waits=())
    )
    board: Any = Board()
    watch = DeadlockWatch(board, dict, ends=True)
    return board, look, read, spends


def test_slots_that_change_are_not_read(looking):
    board, look, read, _ = looking
    for board.version in range(10):
        look()

    assert [] == read


def test_slots_that_stay_are_read_once(looking):
    board, look, read, _ = looking
    for _ in range(10):
        look()
    assert [board.slot(rank) for rank in range(RANKS)] == read

    board.version += 1
    look()
    look()
    assert 2 * RANKS == len(read)


@pytest.mark.parametrize(("spent", "judged"), [(0, 1), (1, 1), (2, 0)])
def test_a_rank_that_spends_hardly_any_time_is_still(looking, monkeypatch, spent, judged):
    """In hundredths of a second between two looks: gloo's threads look at their sockets all the time."""
    _, look, _, spends = looking
    spends |= {1000 + rank: 0 for rank in range(RANKS)} | {1002: spent}
    looks = []
    monkeypatch.setattr(DeadlockWatch, "_judge", lambda *_: looks.append(1))
    for _ in range(6):
        look()

    assert len(looks) == judged


@pytest.mark.parametrize(("rests_at_look", "rests", "pauses"), [(1, True, 0), (10, True, 9), (11, False, 10)])
def test_ranks_need_not_be_at_rest_at_the_same_time(monkeypatch, rests_at_look, rests, pauses):
    """Rank 1000 rests at the first look alone, another one at a later look."""
    looks: Counter[int] = Counter()
    slept: list[float] = []

    def is_at_rest(pid: int) -> bool:
        looks[pid] += 1
        return looks[pid] == {1000: 1}.get(pid, rests_at_look)

    monkeypatch.setattr(deadlock_watch, "is_at_rest", is_at_rest)
    monkeypatch.setattr(deadlock_watch, "sleep", slept.append)

    assert deadlock_watch.come_to_rest([1000, 1001]) is rests
    assert pauses == len(slept)


TORCH = "/site-packages/torch"
OURS = (
    'File "/x/lib/python3.11/pathlib.py", line 1044 in open',
    'File "/d/disttest/runtime/rank/flight.py", line 45 in _answer',
)
WAIT = (
    'File "/d/disttest/observe/patches.py", line 139 in method',
    f'File "{TORCH}/distributed/d.py", line 3 in all_reduce',
)
ENGINE = (f'File "{TORCH}/autograd/graph.py", line 9 in _engine_run_backward',)
USER = ('File "/home/me/test_step.py", line 7 in hook',)


def thread(ident, *frames, current=False):
    heading = f"{'Current t' if current else 'T'}hread 0x{ident:016x} (most recent call first):"
    return "\n".join([heading, *(f"  {frame}" for frame in frames)])


def dump(*threads):
    return "\n\n".join(threads)


def test_a_rank_that_waits():
    assert confirm_waits(dump(thread(5, *OURS), thread(1, *WAIT, *USER, current=True)), {1: False})


def test_a_thread_that_nobody_knows():
    assert not confirm_waits(dump(thread(2, *USER), thread(1, *WAIT)), {1: False})


def test_a_thread_without_a_frame():
    assert not confirm_waits(dump(thread(2, "<no Python frame>"), thread(1, *WAIT)), {1: False})


def test_the_thread_of_torchs_test_classes_that_answers_questions():
    listens = f'File "{TORCH}/testing/_internal/common_distributed.py", line 1002 in _event_listener'

    assert confirm_waits(dump(thread(2, listens), thread(1, *WAIT)), {1: False})


def test_user_code_runs_within_the_wait():
    assert not confirm_waits(thread(1, *USER, *WAIT), {1: False})


def test_a_thread_that_is_said_to_wait_has_ended():
    assert not confirm_waits(thread(1, *WAIT), {1: False, 2: False})


@pytest.mark.parametrize(("frames", "is_there"), [(ENGINE, True), (WAIT, True), (USER, False)])
def test_whether_a_thread_is_still_in_cpp(frames, is_there):
    assert confirm_waits(thread(1, *frames), {1: True}) is is_there


def test_torch_in_python_is_not_in_cpp():
    assert not confirm_waits(thread(1, f'File "{TORCH}/optim/adam.py", line 3 in step'), {1: True})


def test_no_stacks():
    assert not confirm_waits("", {1: False})
    assert not confirm_rest("")


def test_a_rank_that_has_finished():
    rests = thread(1, 'File "/d/disttest/runtime/messages/protocol.py", line 100 in receive')

    assert confirm_rest(dump(thread(5, *OURS), rests))
    assert not confirm_rest(dump(thread(2, *USER), rests))
