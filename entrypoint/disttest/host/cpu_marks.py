"""CPU time of a process by step. A mark ends a step; the step is charged with all usage since the mark before."""

from __future__ import annotations

import functools
import resource
from collections.abc import Iterable
from typing import NamedTuple

from disttest.model import CpuStep


class _Used(NamedTuple):
    cpu_s: float
    faults: int

    def plus(self, other: _Used) -> _Used:
        return _Used(self.cpu_s + other.cpu_s, self.faults + other.faults)

    def minus(self, other: _Used) -> _Used:
        return _Used(self.cpu_s - other.cpu_s, max(0, self.faults - other.faults))


_NOTHING = _Used(0.0, 0)
_Sums = dict[tuple[str, str], _Used]
"""Role and step, mapped to the sum of their usage."""


class CpuMarks:
    """The marks of one process. Nothing is measured unless the run requests it."""

    def __init__(self, role: str, *, asked: bool, since_start: bool = True) -> None:
        """Start measuring.

        Args:
            role: role of the process: ``rank``, ``world`` or ``controller``.
            asked: whether steps are measured.
            since_start: whether the first step includes everything since the process started.
        """
        self._role = role
        self._asked = asked
        self._own: _Sums = {}
        self._of_children: _Sums = {}
        # The counters of a fork begin at zero (getrusage(2)), so its first step includes the pages that its
        # start copies.
        self._last = _NOTHING if since_start or not asked else _used(resource.RUSAGE_SELF)

    def mark(self, step: str) -> None:
        """End a step."""
        if self._asked:
            before, self._last = self._last, _used(resource.RUSAGE_SELF)
            _add(self._own, (self._role, step), self._last.minus(before))

    def take(self) -> tuple[CpuStep, ...]:
        """Return the sums since the last call, including those that children have reported."""
        sums = (*self._of_children.items(), *self._own.items())
        self._of_children, self._own = {}, {}
        return tuple(
            CpuStep(role=role, step=step, cpu_s=used.cpu_s, faults=used.faults) for (role, step), used in sums
        )

    def add_of_child(self, steps: Iterable[CpuStep]) -> None:
        """Add the steps that a child has reported."""
        for each in steps:
            _add(self._of_children, (each.role, each.step), _Used(each.cpu_s, each.faults))

    def mark_children(self, role: str, step: str) -> None:
        """Charge a step with the usage of ended children beyond their reports. Call it when all children have ended."""
        if self._asked:
            # The kernel adds a child to RUSAGE_CHILDREN only when it is awaited (getrusage(2)).
            counted = functools.reduce(_Used.plus, self._of_children.values(), _NOTHING)
            _add(self._of_children, (role, step), _used(resource.RUSAGE_CHILDREN).minus(counted))


def _add(sums: _Sums, key: tuple[str, str], used: _Used) -> None:
    sums[key] = sums.get(key, _NOTHING).plus(used)


def _used(target: int) -> _Used:
    usage = resource.getrusage(target)
    return _Used(usage.ru_utime + usage.ru_stime, usage.ru_minflt)
