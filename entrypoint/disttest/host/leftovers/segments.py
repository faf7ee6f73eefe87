"""Files in shared memory that processes of a run have made: recorded when they are made, removed after the processes
end.

Only files of provable origin are removed; see :mod:`disttest.host.leftovers.makers`. A ledger in the results
directory keeps the records, so that another process can clean up after a world that was killed.
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
# The next one waits for this multiple of its duration.
_REST = 4
"""A scan of the files that a world's processes hold may take milliseconds."""


class Made(Frozen):
    """A file, and the test during which a process of this run made it."""

    entry: ShmEntry
    nodeid: str


class Segments:
    """The files that processes of one world make in shared memory. Every scan runs in the world's process.

    Args:
        results: returns the current path of the results directory.
    """

    def __init__(self, results: Callable[[], Path]) -> None:
        self._results = results
        self._watch = ShmWatch()
        self._made: list[Made] = []
        self._rested_s = 0.0

    def fileno(self) -> int:
        """Return the descriptor that is readable after a file was made or opened; -1 without a watch."""
        return self._watch.fileno()

    def look(self, nodeid: str, *, at_once: bool = False) -> None:
        """Record files that processes of this world have made since the last scan, for the running test.

        Args:
            nodeid: the test; empty before the first one.
            at_once: scan even if the last scan is recent.
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
        """Remove the recorded files that still exist."""
        # Call it after the processes ended; return node id and description of each.
        self._watch.close()
        return tuple(remove_made(self._made))


def remove_made(made: Iterable[Made], folder: Path = SHM) -> Iterator[tuple[str, str]]:
    """Remove those of these files that are not in use, under any name; yield node id and description of each."""
    owners = {each.entry.identity: each.nodeid for each in made}
    for entry in unused_entries(lambda entry: entry.identity in owners, folder) if owners else ():
        nodeid = owners[entry.identity]
        failure = remove_entry(entry, folder)
        removed = f", and could not be removed: {failure}" if failure else "; it was removed"
        yield nodeid, f"shared memory {entry} was left by {nodeid or 'this run'}{removed}"


def _write(ledger: Path, made: Iterable[Made]) -> None:
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in made)
    if lines:
        with contextlib.suppress(OSError):  # without it, only files of killed worlds remain
            fd = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.write(fd, lines)
            os.close(fd)


def take_ledger(results: Path) -> tuple[Made, ...]:
    """Read and delete the ledger: files that worlds of this run have made, some of which may still exist."""
    path = results / LEDGER
    try:
        lines = path.read_bytes().splitlines()
        path.unlink()
    except OSError:
        return ()
    made = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # cut off when its writer was killed
            made.append(msgspec.json.decode(line, type=Made))
    return tuple(made)
