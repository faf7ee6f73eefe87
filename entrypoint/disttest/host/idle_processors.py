"""How much of the processors nobody uses, this machine's other users included."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import psutil

from disttest.clock import monotonic
from disttest.model import Frozen

_PRESSURE = Path("/proc/pressure/cpu")
"""Kernel documentation, "PSI - Pressure Stall Information": microseconds in which something ready to run had to wait."""
_STALLED = re.compile(r"^some .*\btotal=(\d+)$", re.MULTILINE)


class Idleness(Frozen):
    """Of the processors that this process may run on, over some time."""

    idle: float
    """Processors' worth of time that nobody used."""
    stalled: float
    """Share of the time in which something was ready to run and waited for a processor; 0 where the kernel does not say."""


class IdleProcessors:
    """Tells what has been idle since it was asked last."""

    def __init__(self) -> None:
        self._before = self._counters()

    def read(self) -> Idleness:
        """What has been idle since the last time, or since it was made."""
        now = self._counters()
        took_s, idle_s, stalled_s = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        if took_s <= 0:
            return Idleness(idle=0.0, stalled=1.0)
        return Idleness(idle=max(0.0, idle_s / took_s), stalled=min(1.0, max(0.0, stalled_s / took_s)))

    @staticmethod
    def _counters() -> tuple[float, float, float]:
        """Seconds: the clock's, those that processors were idle, those in which something was stalled."""
        ours = os.sched_getaffinity(0)
        times = psutil.cpu_times(percpu=True)
        idle_s = sum(each.idle + each.iowait for index, each in enumerate(times) if index in ours)
        return monotonic(), idle_s, _stalled_s()


def _stalled_s() -> float:
    with contextlib.suppress(OSError):
        if match := _STALLED.search(_PRESSURE.read_text()):
            return int(match[1]) / 1e6
    return 0.0
