"""The last lines of a node's agent, over a slow link."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from disttest.extras.cluster.node import agent as agent_module
from disttest.extras.cluster.node.agent import Agent
from disttest.extras.cluster.node.assignment import NodeAssignment
from disttest.extras.cluster.protocol.wire import CancelJob, StillHere, encode_order
from disttest.runtime.messages.protocol import Message

ASSIGNMENT = NodeAssignment(
    scheduler="local", node=0, nodes=1, host="h", gpus=(), address="127.0.0.1", interface="lo"
)


class SlowLink:
    """Standard input and output of an agent; each wait of a second lets 10 bytes through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, stalls_at_s: float = 1e9) -> None:
        self.now_s = 0.0
        self.sent = bytearray()
        self.orders: list[bytes] = []
        self._room = 0
        self._stalls_at_s = stalls_at_s
        stand_in = SimpleNamespace(set_blocking=lambda *_: None, write=self._write, read=self._read)
        monkeypatch.setattr(agent_module, "os", stand_in)
        monkeypatch.setattr(agent_module, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(agent_module, "wait_any", self._wait)

    def _write(self, _fd: int, data: bytes) -> int:
        if not self._room:
            raise BlockingIOError
        taken, self._room = min(self._room, len(data)), 0
        self.sent += data[:taken]
        return taken

    def _read(self, _fd: int, _most: int) -> bytes:
        if not self.orders:
            raise BlockingIOError
        return self.orders.pop(0)

    def _wait(
        self, *_sources: object, writable: Iterable[int] = (), timeout_s: float = 1e9, until_s: float = 1e9
    ) -> list[int]:
        self.now_s += min(1.0, max(0.0, until_s - self.now_s))
        self._room = 10 if self.now_s < min(until_s, self._stalls_at_s) else 0
        return [1] if self._room else [0] if self.orders else []


def end_with(link: SlowLink, *orders: Message) -> bytes:
    """Let an agent end that has 1,000 bytes left to send; return those that it sent."""
    agent = Agent(ASSIGNMENT)
    agent.pending += b"x" * 1000
    link.orders = [encode_order(order) for order in orders]
    agent.send_rest()
    return bytes(link.sent)


def test_a_slow_link_gets_all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"x" * 1000 == end_with(SlowLink(monkeypatch), StillHere())


def test_a_client_that_reads_no_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    link = SlowLink(monkeypatch, stalls_at_s=50.0)

    assert 490 == len(end_with(link))
    assert link.now_s < 60


def test_a_cancelled_job_does_not_wait_for_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(end_with(SlowLink(monkeypatch), CancelJob(reason="cancelled by SIGINT"))) < 100
