"""Cleaning of shared memory at the end of a run: files of killed worlds are removed, files of unknown origin are
reported.

Each world removes the files of its processes (:mod:`disttest.plugins.leftovers.segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from disttest.model import TestResult
from disttest.plugins.leftovers.limits import LATER_LITTER_S
from disttest.plugins.leftovers.segments import remove_made, take_ledger
from disttest.plugins.leftovers.shared_memory import ShmEntry, scan_shm, unused_entries
from disttest.runtime.controller.run_watch import RunWatch

_MOST_NAMED = 5
_MOST_SUSPECTS = 3


class Sweep(RunWatch):
    """Shared memory before and after a run. Create it before the run starts.

    Args:
        results: returns the current path of the results directory.
    """

    def __init__(self, results: Callable[[], Path]) -> None:
        self._results = results
        # By identity: a file made during the run may have the name of one that was removed.
        self._before = {entry.identity for entry in scan_shm().values()}

    def clean(self, attempts: Callable[[], Collection[TestResult]]) -> Iterator[tuple[str, str]]:
        """Remove files that the run's processes left; yield node id and description of each."""
        # New, unused files of this user whose maker is unknown are reported in one note with the tests that ran at
        # that time. They may belong to any program.
        # The ledger first: files that it lists are then no longer new files of unknown origin.
        yield from remove_made(take_ledger(self._results()))
        new = unused_entries(lambda entry: entry.identity not in self._before)
        ran = attempts() if new else ()
        described = list(filter(None, (describe_leftover(entry, ran) for entry in new)))
        if described:
            more = [f"{len(described) - _MOST_NAMED} more"] if len(described) > _MOST_NAMED else []
            names = ", ".join([*described[:_MOST_NAMED], *more])
            yield "", f"new and unused in shared memory: {names}. Their owner is not known, so they are kept"


def describe_leftover(entry: ShmEntry, attempts: Collection[TestResult]) -> str:
    """Describe a forgotten file and the tests that ran when it was made; empty if none did. Pure."""
    ran = [
        result.nodeid
        for result in attempts
        if 0 <= entry.made_at_s - result.started_at_s <= result.duration_s + LATER_LITTER_S
    ]
    more = [f"{len(ran) - _MOST_SUSPECTS} others"] if len(ran) > _MOST_SUSPECTS else []
    suspects = " or ".join([*ran[:_MOST_SUSPECTS], *more])
    return f"{entry.name} ({entry.size} bytes; {suspects} ran then)" if ran else ""
