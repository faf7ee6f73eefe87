"""Calls that wait for a lazy connection appear on the board as waits until gloo has accepted them."""

from __future__ import annotations

from pathlib import Path

import pytest
from board_actors import Stage, group_of

from disttest.plugins.deadlock import in_rank
from disttest.plugins.deadlock.in_rank import Connecting, WaitingRank

PAIR = group_of(0, 1)


@pytest.fixture
def stage() -> Stage:
    return Stage(2)


def waits(stage: Stage) -> list[tuple[str, int, int | None]]:
    return [(wait.op, wait.seq, wait.peer) for wait in stage.snapshot(0).waits]


@pytest.mark.parametrize("end", ["on_return", "on_error"])
def test_a_message_is_awaited_until_it_is_accepted(stage: Stage, end: str) -> None:
    sender, connecting = stage.ranks[0], Connecting(stage.ranks[0].tool)
    call = sender.call("send", PAIR, peer=1, is_async=True)
    connecting.on_issue(call)
    assert [("send", 1, 1)] == waits(stage)

    getattr(connecting, end)(call, None)

    assert [] == waits(stage)
    (channel,) = stage.snapshot(0).channels.values()
    assert (1, 0) == (channel.issued, channel.done)


def test_collectives_do_not_wait_for_connections_in_the_calling_thread(stage: Stage) -> None:
    connecting = Connecting(stage.ranks[0].tool)

    connecting.on_issue(stage.ranks[0].call("allreduce", PAIR, is_async=True))

    assert [] == waits(stage)


def test_an_unanswered_message_is_a_deadlock_before_it_is_accepted(stage: Stage) -> None:
    connecting = Connecting(stage.ranks[0].tool)
    connecting.on_issue(stage.ranks[0].call("send", PAIR, peer=1, is_async=True))

    deadlock = stage.judge(over={1})

    assert deadlock is not None
    assert [(0, (1,))] == [(edge.rank, edge.ranks) for edge in deadlock.edges]


@pytest.mark.parametrize(
    ("text", "is_lazy"),
    [("1", True), ("True", True), ("0", False), ("f", False), ("False", False), ("No", False)],
)
def test_torchs_switch_decides_whether_connections_are_awaited(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, text: str, is_lazy: bool
) -> None:
    installed: list[object] = []
    monkeypatch.setattr(in_rank.observe, "install", lambda *tools: installed.extend(tools))
    monkeypatch.setattr(in_rank, "BoardTool", lambda *_: stage.ranks[0].tool)
    monkeypatch.setattr(in_rank, "provide_board", lambda _: None)
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", text)

    WaitingRank(Path(), 0)

    assert is_lazy == any(isinstance(tool, Connecting) for tool in installed)
