"""What is idle, from the kernel's counters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from disttest.host import idle_processors
from disttest.host.idle_processors import Idleness, IdleProcessors


class _Kernel:
    """Counters that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pressure: Path) -> None:
        self.now_s = 0.0
        self.offline: set[int] = set()
        self.pressure = pressure
        self.idle_s = [0.0, 0.0, 0.0]
        monkeypatch.setattr(idle_processors, "_PRESSURE", pressure)
        monkeypatch.setattr(idle_processors, "_STAT", pressure.with_name("stat"))
        monkeypatch.setattr(idle_processors, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(idle_processors.os, "sched_getaffinity", lambda _: {0, 2})
        monkeypatch.setattr(idle_processors.os, "sysconf", lambda _: 100)

    @property
    def idle_s(self) -> list[float]:
        """Idle time of each processor; it waits for a disk in 40 % of it."""
        return self._idle_s

    @idle_s.setter
    def idle_s(self, seconds: list[float]) -> None:
        self._idle_s = seconds
        lines = (
            f"cpu{number} 9 9 9 {each * 60:.0f} {each * 40:.0f} 9 9 9 0 0\n"
            for number, each in enumerate(seconds)
            if number not in self.offline
        )
        self.pressure.with_name("stat").write_text(f"cpu  9 9 9 999 99 9 9 9 0 0\n{''.join(lines)}intr 9 9\n")

    def stalled(self, microseconds: int) -> None:
        some = f"some avg10=1.00 avg60=2.00 avg300=3.00 total={microseconds}"
        self.pressure.write_text(f"{some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=77\n")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[_Kernel]:
    with monkeypatch.context() as patch:
        yield _Kernel(patch, tmp_path / "cpu")


def test_processors_that_it_may_run_on_since_it_was_asked_last(kernel: _Kernel) -> None:
    kernel.stalled(1_000_000)
    processors = IdleProcessors()
    kernel.now_s, kernel.idle_s = 2.0, [2.0, 2.0, 1.0]
    kernel.stalled(1_500_000)
    assert Idleness(idle=1.5, stalled=0.25) == processors.read()

    kernel.now_s = 4.0
    assert Idleness(idle=0.0, stalled=0.0) == processors.read()


def test_the_kernel_leaves_out_processors_that_are_offline(kernel: _Kernel) -> None:
    kernel.offline = {1}
    kernel.idle_s = [0.0, 0.0, 0.0]
    processors = IdleProcessors()
    kernel.now_s, kernel.idle_s = 2.0, [1.0, 0.0, 2.0]

    assert Idleness(idle=1.5, stalled=0.0) == processors.read()


def test_a_kernel_without_pressure_says_nothing_of_it(kernel: _Kernel) -> None:
    processors = IdleProcessors()
    kernel.now_s, kernel.idle_s = 1.0, [1.0, 0.0, 0.0]

    assert Idleness(idle=1.0, stalled=0.0) == processors.read()


def test_no_time_has_passed(kernel: _Kernel) -> None:
    processors = IdleProcessors()

    assert 0 == processors.read().idle
