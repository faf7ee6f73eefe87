"""A preflight that runs beside other work: for a controller that must not stand still meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from disttest.host.bounded import BoundedChild, speak
from disttest.host.preflight.messages import Level, PreflightResult, Target
from disttest.host.preflight.steps import WORKER, Bounds, run_preflight
from disttest.limits import PREFLIGHT_MARGIN_S

_MODULE = "disttest.host.preflight.background"


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    targets: tuple[Target, ...]
    level: Level
    worker: str
    bounds: Bounds


class Proof:
    """A running preflight. Wait for its descriptors, or no longer than a second, and call :meth:`advance`."""

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        level: Level = Level.QUICK,
        worker: str = WORKER,
        bounds: Bounds | None = None,
    ) -> None:
        """Start it; the arguments are those of :func:`run_preflight`."""
        bounds = bounds or Bounds()
        order = _Order(targets=tuple(targets), level=level, worker=worker, bounds=bounds)
        self._targets = order.targets
        self._heard: list[bytes] = []
        argument = msgspec.json.encode(order).decode()
        self._child = BoundedChild(
            _MODULE, [argument], timeout_s=bounds.total + PREFLIGHT_MARGIN_S, on_line=self._heard.append
        )

    @property
    def pid(self) -> int:
        """Its process, which who looks for leftovers must not take for one."""
        return self._child.pid

    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when there is something to do."""
        return self._child.descriptors()

    def advance(self) -> PreflightResult | None:
        """The result, or None while it runs. A preflight that dies condemns all that it was to prove."""
        ended = self._child.advance()
        if ended is None:
            return None
        try:
            return msgspec.json.decode(self._heard[-1], type=PreflightResult)
        except (IndexError, msgspec.DecodeError):
            reason = f"the preflight {ended}"
            return PreflightResult(checks=(), broken={target.name: reason for target in self._targets})

    def kill(self) -> None:
        """End it now; its workers die with it."""
        self._child.kill()


def main(arguments: Sequence[str]) -> None:
    """Run the preflight that the argument describes and say its result."""
    order = msgspec.json.decode(arguments[0], type=_Order)
    speak(run_preflight(order.targets, level=order.level, worker=order.worker, bounds=order.bounds))
