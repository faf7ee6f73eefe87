"""Files in shared memory that the processes of a run have made: noted as they are made, removed once these are gone.

Only what can be shown to be ours is removed; see :mod:`disttest.host.leftovers.makers`. A ledger in the results directory keeps
what was noted, so that whoever is left can clean up after a world that was killed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from disttest.clock import monotonic
from disttest.host.leftovers.makers import ShmWatch
from disttest.host.leftovers.shared_memory import SHM, ShmEntry, remove_entry, unused_entries
from disttest.host.proc import descendants
from disttest.model import Frozen

LEDGER = ".shared-memory"
_REST = 4
"""A look at what the processes of a world have in hand may take milliseconds: after it, so many times its time is free."""


class Made(Frozen):
    """A file, and the test during which a process of ours made it."""

    entry: ShmEntry
    nodeid: str


class Segments:
    """What the processes of one world make in shared memory. Everything is looked at from the world's process.

    Args:
        results: says where the results directory is by now.
    """

    def __init__(self, results: Callable[[], Path]) -> None:
        self._results = results
        self._watch = ShmWatch()
        self._made: list[Made] = []
        self._rested_s = 0.0

    def fileno(self) -> int:
        """Readable when somebody has made or opened a file in shared memory; -1 where that cannot be watched."""
        return self._watch.fileno()

    def look(self, nodeid: str, *, at_once: bool = False) -> None:
        """Note what processes of this world have made since the last look, for the test that runs.

        Args:
            nodeid: the test; empty before the first one.
            at_once: even if the last look has only just been.
        """
        began_s = monotonic()
        if not self._watch.has_news() or (began_s < self._rested_s and not at_once):
            return
        found = self._watch.made_by(descendants)
        ended_s = monotonic()
        self._rested_s = ended_s + _REST * (ended_s - began_s)
        made = [Made(entry=entry, nodeid=nodeid) for entry in found]
        self._made += made
        _write(self._results() / LEDGER, made)

    def remove(self) -> tuple[tuple[str, str], ...]:
        """Remove what was made and is there still, now that the processes are gone; node id and words for each."""
        self._watch.close()
        return tuple(remove_made(self._made))


def remove_made(made: Iterable[Made], folder: Path = SHM) -> Iterator[tuple[str, str]]:
    """Remove what nobody uses of these files, under whatever name; node id and words for each."""
    owners = {each.entry.identity: each.nodeid for each in made}
    for entry in unused_entries(lambda entry: entry.identity in owners, folder) if owners else ():
        nodeid = owners[entry.identity]
        failure = remove_entry(entry, folder)
        removed = f", and could not be removed: {failure}" if failure else "; it was removed"
        yield nodeid, f"shared memory {entry} was left by {nodeid or 'this run'}{removed}"


def _write(ledger: Path, made: Iterable[Made]) -> None:
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in made)
    if lines:
        with contextlib.suppress(OSError):  # without it only a killed world's files cannot be cleaned
            fd = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.write(fd, lines)
            os.close(fd)


def take_ledger(results: Path) -> tuple[Made, ...]:
    """What worlds of this run have made, of which some may be there still; the ledger is gone then."""
    path = results / LEDGER
    try:
        lines = path.read_bytes().splitlines()
        path.unlink()
    except OSError:
        return ()
    made = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # cut by the end of its writer
            made.append(msgspec.json.decode(line, type=Made))
    return tuple(made)
