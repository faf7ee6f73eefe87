"""What a command, or anything that starts processes and waits for them, takes."""

from __future__ import annotations

import resource
import time
from typing import NamedTuple


class Took(NamedTuple):
    """Of whatever ran; CPU time is that of the processes that were waited for, and of those below them."""

    wall_s: float
    cpu_s: float
    page_faults: int


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._began = self._now()

    def took(self) -> Took:
        """What has been taken until now."""
        return Took(*(now - then for now, then in zip(self._now(), self._began, strict=True)))  # type: ignore[arg-type]

    @staticmethod
    def _now() -> Took:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Took(time.monotonic(), used.ru_utime + used.ru_stime, used.ru_minflt)
