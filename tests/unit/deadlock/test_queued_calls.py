"""Which parts of a collective in the queue of a GPU wait for each other."""

from __future__ import annotations

import pytest

from disttest.plugins.deadlock import queued_calls
from disttest.plugins.deadlock.queued_calls import QueuedCall, parts_of
from disttest.plugins.deadlock.snapshot import GroupKey

GROUP = GroupKey(name="g", ranks=(0, 1, 2))


class Issued:
    def __init__(self, op: str, root: int | None = None) -> None:
        self.op, self.root = op, root


@pytest.mark.parametrize(
    ("op", "root", "awaited"),
    [
        ("allreduce", None, [0, 1, 2]),
        ("broadcast", 1, [0, 1]),
        ("alltoall", None, []),
        ("alltoall_base", None, []),
    ],
)
def test_only_parts_that_must_communicate_are_awaited(
    monkeypatch: pytest.MonkeyPatch, op: str, root: int | None, awaited: list[int]
) -> None:
    monkeypatch.setattr(queued_calls, "called", lambda *_: Issued(op, root))
    boards = dict.fromkeys(GROUP.ranks)

    found = parts_of(QueuedCall(0, GROUP, 4), boards)  # type: ignore[arg-type]

    assert found == [QueuedCall(rank, GROUP, 4) for rank in awaited]


def test_without_the_board_of_a_member_none_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued_calls, "called", lambda *_: Issued("allreduce"))

    assert parts_of(QueuedCall(0, GROUP, 4), {0: None, 1: None}) == []  # type: ignore[dict-item]
