"""A preflight worker: it imports torch once, then executes jobs until its input ends.

It runs in a bounded child. Before each check it reports its name, so that the parent can name the one that hangs.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from disttest.host.bounded import send_to_parent
from disttest.host.preflight.bench import Bench, CheckFailed, Collectives, Measure, copy_between
from disttest.host.preflight.messages import (
    PAIR_CHECK,
    AnyJob,
    Began,
    CollectiveJob,
    DeviceJob,
    Measured,
    PairsJob,
    Ready,
)


def main(_arguments: Sequence[str]) -> None:
    """Execute jobs with the real benches."""
    Worker().serve()


class Worker:
    """Executes jobs. Tests plant faults by passing other benches."""

    def __init__(self, bench: type[Bench] = Bench, collectives: type[Collectives] = Collectives) -> None:
        self._bench = bench
        self._collectives = collectives
        self._torn = False

    def serve(self) -> None:
        """Execute jobs until the input ends."""
        # Ranks on the CPU share the machine; with one thread each they do not wait for each other.
        torch.set_num_threads(1)
        decoder = msgspec.json.Decoder(AnyJob)
        send_to_parent(Ready())
        for line in sys.stdin:
            self._do(decoder.decode(line))
            _return_memory()
            send_to_parent(Ready())
            if self._torn:
                return

    def _do(self, job: AnyJob) -> None:
        match job:
            case DeviceJob():
                self._run_all(self._bench(job.target, job.level).checks())
            case PairsJob():
                self._pairs(job)
            case CollectiveJob():
                self._collective(job)

    def _pairs(self, job: PairsJob) -> None:
        benches = [self._bench(target, job.level, index) for index, target in enumerate(job.targets)]
        for pair in job.pairs:
            send_to_parent(Began(check=PAIR_CHECK, pair=pair))
            first, second = (benches[place] for place in pair)
            _measure(lambda first=first, second=second: copy_between(first, second))  # type: ignore[misc]

    def _collective(self, job: CollectiveJob) -> None:
        collectives = self._collectives(job, self._bench(job.target, job.level))
        if self._run_all(collectives.checks()):
            collectives.close()
        else:
            # Destroying a group whose other ranks wait can take as long as its timeout.
            self._torn = True

    def _run_all(self, checks: Sequence[Callable[[], Measure | None]]) -> bool:
        """Run checks until one fails; return whether all passed."""
        for check in checks:
            send_to_parent(Began(check=check.__name__))
            if not _measure(check):
                return False
        return True


def _return_memory() -> None:
    """Release cached memory for other workers. A device that refuses has already failed a check."""
    cuda: Any = torch.cuda  # torch.cuda has no annotations
    if cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            cuda.empty_cache()


def _measure(check: Callable[[], Measure | None]) -> bool:
    started_s = time.perf_counter()
    try:
        value, unit = check() or (None, "")
    except CheckFailed as failure:
        send_to_parent(Measured(passed=False, message=str(failure), accused=failure.accused))
        return False
    except Exception as error:  # noqa: BLE001 - any error of a device's library is a finding
        send_to_parent(Measured(passed=False, message=f"{type(error).__name__}: {_first_line(error)}"))
        return False
    send_to_parent(Measured(passed=True, value=value, unit=unit, duration_s=time.perf_counter() - started_s))
    return True


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
