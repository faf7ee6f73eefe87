"""The process that proves devices: it imports torch once, and the workers of its preflight are forks of it.

It uses no device itself, so that its forks can. Two imports for the facts and one for each worker took three times
as long on two processors. The process that starts it can continue meanwhile.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from disttest.host.bounded import BoundedChild, send_to_parent, wait_children
from disttest.plugins.gpus.limits import DRIVER_TOTAL_S, PREFLIGHT_MARGIN_S
from disttest.plugins.gpus.preflight.messages import Level, PreflightResult, Target
from disttest.plugins.gpus.preflight.steps import WORKER, Bounds, prove_all
from disttest.plugins.gpus.torch_facts import TorchFacts, local_torch_facts, look_at_devices

_MODULE = "disttest.plugins.gpus.preflight.prover"


class _AskDevices(msgspec.Struct, frozen=True, tag=True):
    """Order to report the devices that torch sees."""


class _Prove(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Order to prove these devices."""

    targets: tuple[Target, ...]
    level: Level


_orders = msgspec.json.Decoder(_AskDevices | _Prove)


class Prover:
    """A running prover. Wait for its descriptors, for a second at most, and call :meth:`advance`.

    As a context manager it ends with the block.
    """

    def __init__(self, *, worker: str = WORKER, bounds: Bounds | None = None) -> None:
        """Start the process, which begins to import torch.

        Args:
            worker: module of the workers.
            bounds: time limits.
        """
        self._bounds = bounds or Bounds()
        self._torch: TorchFacts | None = None
        self._order: tuple[_AskDevices | _Prove, float] | None = None
        """Order to send once torch is imported, and its time limit in seconds."""
        self._targets: tuple[Target, ...] = ()
        self._answer: bytes | None = None
        arguments = [worker, msgspec.json.encode(self._bounds).decode()]
        self._child = BoundedChild(
            _MODULE, arguments, timeout_s=math.inf, stall_s=self._bounds.start, on_line=self._on_line
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Pid of the process, which must not count as a leftover."""
        return self._child.pid

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that become readable when :meth:`advance` has work."""
        return self._child.descriptors()

    def ask_torch(self) -> TorchFacts:
        """Wait for the facts about torch and its devices."""
        self._give(_AskDevices(), DRIVER_TOTAL_S + PREFLIGHT_MARGIN_S)
        self._wait()
        if self._torch is None:
            return TorchFacts(error=f"importing torch: the child {self._child.ended}")
        if self._answer is None:
            error = f"initialising {self._torch.device_type}: the child {self._child.ended}"
            return msgspec.structs.replace(self._torch, error=error)
        return msgspec.json.decode(self._answer, type=TorchFacts)

    def begin(self, targets: Sequence[Target], *, level: Level = Level.QUICK) -> None:
        """Begin to prove devices. It takes seconds, and never longer than the limits.

        Args:
            targets: devices to prove, all of one device type.
            level: amount of work.
        """
        self._targets = tuple(targets)
        order = _Prove(targets=self._targets, level=level)
        self._give(order, self._bounds.total + PREFLIGHT_MARGIN_S)

    def advance(self) -> PreflightResult | None:
        """Return the result, or None while the preflight runs."""
        # If the prover dies, all of its devices count as broken.
        ended = self._child.advance()
        if self._answer is not None:
            return msgspec.json.decode(self._answer, type=PreflightResult)
        if ended is None:
            return None
        reason = f"the preflight {ended}"
        return PreflightResult(checks=(), broken={target.name: reason for target in self._targets})

    def result(self) -> PreflightResult:
        """Wait for the result."""
        self._wait()
        result = self.advance()
        assert result is not None
        return result

    def kill(self) -> None:
        """Kill the process; its workers die with it."""
        self._child.kill()

    def _give(self, order: _AskDevices | _Prove, limit_s: float) -> None:
        self._answer = None
        self._order = (order, limit_s)
        self._send()

    def _send(self) -> None:
        if self._torch is not None and self._order is not None:
            (order, limit_s), self._order = self._order, None
            self._child.send(order, stall_s=limit_s)

    def _on_line(self, line: bytes) -> None:
        # The prover waits for an order now, so its silence means nothing until the next one.
        self._child.expect()
        if self._torch is None:
            self._torch = msgspec.json.decode(line, type=TorchFacts)
            self._send()
        else:
            self._answer = line

    def _wait(self) -> None:
        wait_children([self._child], until=lambda: self._answer is not None)


def main(arguments: Sequence[str]) -> None:
    """Import torch, report it, then execute orders until the input ends."""
    worker, bounds = arguments[0], msgspec.json.decode(arguments[1], type=Bounds)
    importlib.import_module(worker)  # it imports torch
    send_to_parent(local_torch_facts())
    found = look_at_devices()
    for line in sys.stdin:
        match _orders.decode(line):
            case _AskDevices():
                send_to_parent(found.torch)
            case _Prove(targets=targets, level=level):
                send_to_parent(
                    prove_all(targets, level=level, worker=worker, bounds=bounds, fork=found.by_forks)
                )
