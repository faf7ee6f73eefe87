"""What a run's processes left in shared memory, once all of them are gone: named, and removed.

The controller does the same as worlds end (:mod:`disttest.running.litter`); here is what a controller that died, or
had no more time, has left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from disttest.host.leftovers import (
    Litter,
    Period,
    find_litter,
    names_in_use,
    remove_litter,
    scan_shm,
    sees_host_pids,
)
from disttest.results.fold import RunResult, TestOutcome

_LATER_S = 1.0
"""A killed world may live on for a moment after its verdict."""
_HOST_IPC_NAMESPACE = "ipc:[4026531839]"
"""PROC_IPC_INIT_INO of the kernel."""


class Sweep:
    """Made before the run starts, to know what was there."""

    def __init__(self) -> None:
        self._before = scan_shm()

    def clean(self, run: RunResult) -> Iterator[tuple[str, str]]:
        """Remove what the run's tests left; yield ``(what, node id)`` for each entry, for the journal.

        Only what was made while a test ran, belongs to our user, and is in no living process's use counts; and
        it is only named where processes of others may be out of sight (a container that shares the host's
        shared memory).
        """
        after = scan_shm()
        if after.keys() <= self._before.keys():
            return
        periods = [period for test in run.tests for period in _periods(test)]
        found = find_litter(self._before, after, periods, in_use=names_in_use(), uid=os.geteuid())
        for litter in found:
            if litter.tests:
                yield f"{litter}{remove_and_tell(litter)}", litter.tests[0] if len(litter.tests) == 1 else ""


def remove_and_tell(litter: Litter) -> str:
    """Remove a file if whoever may use it is in our sight; the end of a sentence that says what became of it."""
    if not (litter.certain or _sees_all_users()):
        return "; remove it with `disttest doctor --clean` where all of the machine can be seen"
    failed = remove_litter([litter])
    return f", and could not be removed: {failed[0]}" if failed else "; it was removed"


def _periods(test: TestOutcome) -> Iterator[Period]:
    for result in test.attempts:
        yield Period(
            nodeid=result.nodeid,
            began_at_s=result.started_at_s,
            ended_at_s=result.started_at_s + result.duration_s + _LATER_S,
            pids=tuple(rank.pid for rank in result.ranks),
        )


def _sees_all_users() -> bool:
    """Whether whoever may use our shared memory is among the processes that we see."""
    try:
        private = str(Path("/proc/self/ns/ipc").readlink()) != _HOST_IPC_NAMESPACE
    except OSError:
        private = False
    return private or sees_host_pids()
