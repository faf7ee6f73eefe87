"""Who makes which file in shared memory, learned at the moment when it is made.

inotify tells that a file has been made and how often it was opened since, but not by whom. Whoever made it has it open or
mapped still when we look a moment later, as the only one who has ever opened it. A file that was opened by others meanwhile,
or that its maker has let go of already, is nobody's, as far as can be shown, and is not looked at again: when the others have
closed it, it would look as if it were ours. The maker's pid in its name, as libraries write it, is enough by itself.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from disttest.host.leftovers.shared_memory import (
    SHM,
    Identity,
    ShmEntry,
    mapped_files,
    open_files,
    pid_in_name,
    scan_entry,
)
from disttest.host.proc import sees_all_users

_IN_CLOSE = 0x08 | 0x10
_IN_OPEN = 0x20
_IN_MOVED_FROM = 0x40
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_Q_OVERFLOW = 0x4000
_IN_ISDIR = 0x40000000
_HEADER = struct.Struct("iIII")
_READ_AT_ONCE = 64 * 1024
_LINKED = "sem."
"""glibc makes a semaphore under a name by chance and links it to its own: its first opening is not its maker's."""
_MOST_PENDING = 4096
"""Of a flood of files the rest is nobody's."""


class ShmWatch:
    """Watches over the files that come into a folder in memory, for a tree of processes.

    Where the kernel grants no watch (``max_user_instances``), or processes out of sight may use the folder too (containers
    that share it), nothing is ever shown to be ours.
    """

    def __init__(self, folder: Path = SHM) -> None:
        self._folder = folder
        self._fd = _watch(folder) if sees_all_users() else -1
        self._opens: dict[str, int] = {}
        """Name of a file that has been made -> how often it was opened since."""

    def fileno(self) -> int:
        """Readable when something was made or opened; -1 where nothing can be watched."""
        return self._fd

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def has_news(self) -> bool:
        """Whether a file was made since the last look that is there still, as far as has been heard."""
        self._take_news()
        return bool(self._opens)

    def made_by(self, family: Callable[[], Collection[int]]) -> tuple[ShmEntry, ...]:
        """The files made since the last look that one of our processes has made, as can be shown.

        Args:
            family: pids of our processes, as they are now.
        """
        pids = family()
        names = list(self._opens)
        candidates = [entry for name in names if (entry := scan_entry(self._folder / name))]
        files = {entry.identity for entry in candidates if entry.uid == os.geteuid()}
        held = _holdings(pids, self._folder, files)
        shared = _open_elsewhere(pids, self._folder, held.keys())
        if shared:  # perhaps by a child that one of them has forked meanwhile
            shared = _open_elsewhere(family(), self._folder, shared)
        self._take_news()  # whoever opened one of them before it was seen in hand is counted now
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
        for name in names:  # but not what has come meanwhile: it is looked at next
            self._opens.pop(name, None)
        return tuple(made)

    def _is_makers(self, name: str, held_as: Collection[str]) -> bool:
        """Whether those who have it in hand made it: by the only opening, or under a name that it had before."""
        if name not in held_as:
            return bool(held_as)
        return self._opens.get(name) == 1 and not name.startswith(_LINKED)

    def _take_news(self) -> None:
        for name, mask in _events(self._fd):
            if mask & _IN_Q_OVERFLOW:  # some were lost
                self._opens.clear()
            elif mask & _IN_ISDIR:  # the folder itself is listed, or has a new one inside
                continue
            elif mask & _IN_CREATE and len(self._opens) < _MOST_PENDING:
                self._opens[name] = 0
            elif mask & (_IN_DELETE | _IN_MOVED_FROM):
                self._opens.pop(name, None)
            elif mask & _IN_OPEN and name in self._opens:
                self._opens[name] += 1


def _watch(folder: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    # Equal events in a row are merged into one. Of two openings in a row the first is still open: see _open_elsewhere().
    mask = _IN_CREATE | _IN_OPEN | _IN_CLOSE | _IN_DELETE | _IN_MOVED_FROM
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(folder), mask) < 0:
        os.close(fd)
        return -1
    return fd


def _events(fd: int) -> Iterator[tuple[str, int]]:
    """Name and mask of each event that has come."""
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
    """File -> the names under which these processes have it open or mapped; memory maps only where they must be read."""
    held: dict[Identity, set[str]] = {}
    for look in (open_files, mapped_files):
        for pid in pids if set(files) - held.keys() else ():
            for file, path in look(pid, folder):
                if file in files:
                    name = path.removeprefix(f"{folder}/").removesuffix(" (deleted)")
                    held.setdefault(file, set()).add(name)
    return held


def _open_elsewhere(pids: Collection[int], folder: Path, files: Collection[Identity]) -> set[Identity]:
    """Which of these files a process has open that is none of ours."""
    others = (int(name) for name in os.listdir("/proc") if name.isdecimal()) if files else ()  # noqa: PTH208
    return {file for pid in others if pid not in pids for file, _ in open_files(pid, folder) if file in files}
