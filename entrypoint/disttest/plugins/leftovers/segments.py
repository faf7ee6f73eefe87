"""Files in shared memory that processes of a run have made: recorded when they are made, removed after the processes
end.

Only files of provable origin are removed. inotify reports that a file was made and how often it was opened since, but
not by which process. A moment later, its maker still has it open or mapped, and is the only process that ever opened
it. If other processes have opened it meanwhile, or its maker has closed it, its maker cannot be proven and the file is
not checked again: after the others have closed it, it would look like a file of this run. A pid in its name, as
libraries write it, is sufficient proof.

The time at which a file was made proves nothing, because other shells and runs of the same user make files, too.
fanotify reports pids to root only (CAP_SYS_ADMIN). A mount namespace with its own ``/dev/shm`` would cut tests off
from CUDA IPC and NCCL peers outside.

A ledger in the results directory keeps the records, so that another process can clean up after a world that was
killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from disttest.clock import monotonic
from disttest.host.proc import descendants, sees_all_users
from disttest.model import Frozen
from disttest.plugins.leftovers.limits import SHM_OPENED_S
from disttest.plugins.leftovers.shared_memory import (
    SHM,
    Identity,
    ShmEntry,
    mapped_files,
    open_files,
    pid_in_name,
    remove_entry,
    scan_entry,
    unused_entries,
)
from disttest.runtime.world.world_watch import WorldWatch

_IN_CLOSE = 0x08 | 0x10
_IN_OPEN = 0x20
_IN_MOVED_FROM = 0x40
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_Q_OVERFLOW = 0x4000
_IN_ISDIR = 0x40000000
# inotify(7): watch, mask, cookie, and the length of the name behind it, which is padded with zeros.
_HEADER = struct.Struct("iIII")
_READ_AT_ONCE = 64 * 1024
_LINKED = "sem."
"""Prefix of semaphores. glibc makes one under a random name, so the first opening is not the maker's."""
_MOST_PENDING = 4096
"""Number of new files that are tracked; of more, the makers stay unknown."""


@dataclass
class _NewFile:
    """A file that was made since the last scan."""

    reported_s: float
    """When the kernel reported it."""
    opened: int = 0
    """Number of times it was opened since."""


class ShmWatch:
    """A watch over new files in a shared-memory folder, for a tree of processes.

    If the kernel grants no watch (``max_user_instances``), or invisible processes may use the folder too
    (containers that share it), no file is ever attributed to this tree.
    """

    def __init__(self, folder: Path = SHM) -> None:
        self._folder = folder
        self._fd = _watch(folder) if sees_all_users() else -1
        self._new: dict[str, _NewFile] = {}
        """New files by name."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a file was made or opened; -1 if nothing can be watched."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def has_news(self) -> bool:
        """Return whether a file was made since the last scan and still exists, by the events received so far."""
        self._take_news()
        return bool(self._new)

    def made_by(self, family: Callable[[], Collection[int]]) -> tuple[ShmEntry, ...]:
        """Return the files made since the last scan that provably belong to processes of this tree.

        Args:
            family: returns the current pids of the tree.
        """
        pids = family()
        names = list(self._new)
        # Decided before the scan: a file that its maker opens during the scan has to be looked at again.
        early = {name for name in names if self._is_being_made(name)}
        candidates = [entry for name in names if (entry := scan_entry(self._folder / name))]
        files = {entry.identity for entry in candidates if entry.uid == os.geteuid()}
        held = _holdings(pids, self._folder, files)
        shared = _open_elsewhere(pids, self._folder, held.keys())
        if shared:  # perhaps by a child forked meanwhile
            shared = _open_elsewhere(family(), self._folder, shared)
        # Counts processes that opened one of the files before it was seen in use.
        self._take_news()
        made = [
            entry
            for entry in candidates
            if entry.identity in files
            and (
                pid_in_name(entry.name) in pids
                or (
                    entry.identity not in shared and self._is_makers(entry.name, held.get(entry.identity, ()))
                )
            )
        ]
        early -= {entry.name for entry in made}
        for name in set(names) - early:  # files that arrived meanwhile are checked next time
            self._new.pop(name, None)
        return tuple(made)

    def _is_being_made(self, name: str) -> bool:
        """Return whether the maker of a file may be about to open it, so that it has to be checked again.

        The kernel reports a file before its maker has a descriptor of it, and the report may wake this process in between.
        A file that was linked is never opened by its maker.
        """
        # Seen once in a complete run: the event woke the world before the maker had its descriptor, and the
        # file stayed.
        file = self._new[name]
        return not file.opened and monotonic() - file.reported_s < SHM_OPENED_S

    def _is_makers(self, name: str, held_as: Collection[str]) -> bool:
        """Return whether its holders made a file: by its only opening, or under an earlier name of it."""
        if name not in held_as:
            return bool(held_as)
        return name in self._new and self._new[name].opened == 1 and not name.startswith(_LINKED)

    def _take_news(self) -> None:
        for name, mask in _events(self._fd):
            if mask & _IN_Q_OVERFLOW:  # events were lost
                self._new.clear()
            elif mask & _IN_ISDIR:  # listing the folder, or a new folder inside it
                continue
            elif mask & _IN_CREATE and len(self._new) < _MOST_PENDING:
                self._new[name] = _NewFile(monotonic())
            elif mask & (_IN_DELETE | _IN_MOVED_FROM):
                self._new.pop(name, None)
            elif mask & _IN_OPEN and name in self._new:
                self._new[name].opened += 1


def _watch(folder: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    # inotify merges equal consecutive events. Of two consecutive openings the first is still open: see
    # _open_elsewhere().
    mask = _IN_CREATE | _IN_OPEN | _IN_CLOSE | _IN_DELETE | _IN_MOVED_FROM
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(folder), mask) < 0:
        os.close(fd)
        return -1
    return fd


def _events(fd: int) -> Iterator[tuple[str, int]]:
    """Yield name and mask of each pending event."""
    while fd >= 0:
        try:
            data = os.read(fd, _READ_AT_ONCE)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            _, mask, _, length = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size + length
            yield os.fsdecode(data[offset - length : offset].rstrip(b"\0")), mask


def _holdings(
    pids: Collection[int], folder: Path, files: Collection[Identity]
) -> Mapping[Identity, set[str]]:
    """Return each file with the names under which these processes have it open or mapped."""
    # Memory maps are read only for files that are not found open.
    held: dict[Identity, set[str]] = {}
    for look in (open_files, mapped_files):
        for pid in pids if set(files) - held.keys() else ():
            for file, path in look(pid, folder):
                if file in files:
                    # The kernel adds " (deleted)" to the path of a removed file.
                    name = path.removeprefix(f"{folder}/").removesuffix(" (deleted)")
                    held.setdefault(file, set()).add(name)
    return held


def _open_elsewhere(pids: Collection[int], folder: Path, files: Collection[Identity]) -> set[Identity]:
    """Return the files that a process outside of this tree has open."""
    others = (int(name) for name in os.listdir("/proc") if name.isdecimal()) if files else ()  # noqa: PTH208
    return {file for pid in others if pid not in pids for file, _ in open_files(pid, folder) if file in files}


LEDGER = ".shared-memory"
# The next one waits for this multiple of its duration.
_REST = 4
"""A scan of the files that a world's processes hold may take milliseconds."""


class Made(Frozen):
    """A file, and the test during which a process of this run made it."""

    entry: ShmEntry
    nodeid: str


class Segments(WorldWatch):
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

    def clean(self) -> tuple[tuple[str, str], ...]:
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
            # All worlds of a run append to one file, each its lines in one write.
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
