"""Supervision with a container that does as it is told, and a clock that stands still."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from requests import ConnectionError as Disconnected

from disttest.errors import EngineError
from disttest.extras.container.supervise import Interrupted, SignalSwitch, supervise


class FakeContainer:
    """Ends when a signal that it listens to arrives."""

    def __init__(self, *, obeys: dict[Any, int], lines: tuple[bytes, ...] = (), lost: bool = False) -> None:
        self.obeys, self.lines, self.lost = obeys, lines, lost
        self.got: list[Any] = []
        self.ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.on_start = lambda: None

    def start(self) -> None:
        self.on_start()

    def kill(self, signal: Any = None) -> None:
        self.got.append(signal)
        if signal in self.obeys:
            self.ended.put(self.obeys[signal])

    def wait(self, **_arguments: Any) -> dict[str, Any]:
        if self.lost:
            raise Disconnected("connection refused")
        return {"StatusCode": self.ended.get()}

    def attach(self, **_arguments: Any) -> Iterator[tuple[bytes, None]]:
        return iter([(line, None) for line in self.lines])


def follow(container: FakeContainer, switch: SignalSwitch, **arguments: Any):
    seen: list[bytes] = []
    outcome = supervise(container, write=lambda out, _err: seen.append(out), switch=switch, **arguments)
    return outcome, b"".join(seen)


def test_output_and_code() -> None:
    container = FakeContainer(obeys={}, lines=(b"a", b"b"))
    container.ended.put(3)
    outcome, seen = follow(container, SignalSwitch())
    assert (outcome.code, outcome.signum, seen) == (3, 0, b"ab")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_forwarded_as_it_is(signum: int) -> None:
    switch = SignalSwitch()
    container = FakeContainer(obeys={signum: 2})
    container.on_start = lambda: switch.handle(signum, None)
    outcome, _ = follow(container, switch)
    assert (outcome.code, outcome.signum, outcome.killed, container.got) == (2, signum, False, [signum])


def test_a_second_signal_is_forwarded_too_and_the_first_one_counts() -> None:
    switch = SignalSwitch()
    container = FakeContainer(obeys={signal.SIGTERM: 143})
    container.on_start = lambda: [switch.handle(signum, None) for signum in (signal.SIGINT, signal.SIGTERM)]
    outcome, _ = follow(container, switch)
    assert (outcome.signum, container.got) == (signal.SIGINT, [signal.SIGINT, signal.SIGTERM])


def test_one_that_does_not_listen_is_killed_after_the_grace() -> None:
    switch = SignalSwitch()
    container = FakeContainer(obeys={"SIGKILL": 137})
    container.on_start = lambda: switch.handle(signal.SIGINT, None)
    outcome, _ = follow(container, switch, grace_s=0.0)
    assert (outcome.code, outcome.killed, container.got) == (137, True, [signal.SIGINT, "SIGKILL"])


def test_an_engine_that_goes_away_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="the connection to the engine was lost while the container ran"):
        follow(FakeContainer(obeys={}, lost=True), SignalSwitch())


def test_signals_interrupt_what_comes_before_and_after() -> None:
    switch = SignalSwitch()
    container = FakeContainer(obeys={})
    container.ended.put(0)
    follow(container, switch)
    with pytest.raises(Interrupted) as caught:
        switch.handle(signal.SIGTERM, None)
    assert caught.value.signum == signal.SIGTERM
