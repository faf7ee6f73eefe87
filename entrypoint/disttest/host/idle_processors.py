"""Idle processors, including the load of other users of this machine."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from disttest.clock import monotonic
from disttest.model import Frozen

_STAT = Path("/proc/stat")
# cpu2 user nice system idle iowait …; psutil drops the number, and a processor that is offline has no line.
_IDLE = re.compile(r"^cpu(\d+) \d+ \d+ \d+ (\d+) (\d+)", re.MULTILINE)
_PRESSURE = Path("/proc/pressure/cpu")
"""See the kernel's documentation "PSI - Pressure Stall Information": microseconds in which a ready task had to wait."""
_STALLED = re.compile(r"^some .*\btotal=(\d+)$", re.MULTILINE)


class Idleness(Frozen):
    """Idle time and stalls of the processors that this process may run on, over a period."""

    idle: float
    """Unused time, in processors."""
    stalled: float
    """Share of the time in which a ready task waited for a processor; 0 if the kernel does not report it."""


class IdleProcessors:
    """A meter of the idle time since its last reading."""

    # The load of the whole machine counts: a fixed number of slots per processor is wrong for every suite, as one
    # computes and another sleeps.

    def __init__(self) -> None:
        self._before = self._counters()

    def read(self) -> Idleness:
        """Return the idleness since the last reading, or since the meter was made."""
        now = self._counters()
        took_s, idle_s, stalled_s = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        # Two readings at the same instant say nothing. This result lends no slot.
        if took_s <= 0:
            return Idleness(idle=0.0, stalled=1.0)
        return Idleness(idle=max(0.0, idle_s / took_s), stalled=min(1.0, max(0.0, stalled_s / took_s)))

    @staticmethod
    def _counters() -> tuple[float, float, float]:
        """Return seconds of the clock, of idle processors, and of stalled tasks."""
        ours = os.sched_getaffinity(0)
        # While a task waits for a disk, its processor is free for others.
        found = _IDLE.findall(_STAT.read_text())
        idle = sum(int(idle) + int(iowait) for number, idle, iowait in found if int(number) in ours)
        return monotonic(), idle / os.sysconf("SC_CLK_TCK"), _stalled_s()


def _stalled_s() -> float:
    # `some avg10=0.00 avg60=0.00 avg300=0.00 total=48151623`. Kernels without CONFIG_PSI have no such file.
    with contextlib.suppress(OSError):
        if match := _STALLED.search(_PRESSURE.read_text()):
            return int(match[1]) / 1e6
    return 0.0
