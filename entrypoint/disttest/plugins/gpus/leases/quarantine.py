"""Quarantine of GPUs: notes in the lease directory, which all runs of the host read.

A quarantine ends when the host reboots, when the process that held the GPU ends, or when a preflight finds the GPU
healthy (``disttest doctor`` then lifts it).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from disttest.errors import InfrastructureError
from disttest.host.proc import read_boot_id
from disttest.model import UNREADABLE, Frozen
from disttest.plugins.gpus.leases.lockfiles import boot_clock
from disttest.plugins.gpus.leases.shared_folder import SharedFolder, plain_text

_SUFFIX = ".quarantine"


class Quarantine(Frozen):
    """The reason why a slot is not used."""

    uuid: str
    reason: str
    pid: int = 0
    """Process that holds the GPU and cannot be killed; 0 if the GPU itself is at fault."""
    boot_id: str = ""
    since_s: float = 0.0
    """Start on the boot clock."""


class QuarantineNotes:
    """The notes in a lease directory. Those of other users count as well: they can cost GPUs, and nothing else."""

    def __init__(self, directory: Path, *, boot_id: str | None = None) -> None:
        """Open the directory.

        Raises:
            UsageError: it cannot be used for leases.
        """
        self._folder = SharedFolder(directory)
        self._boot_id = read_boot_id() if boot_id is None else boot_id

    def add(self, uuid: str, reason: str, *, pid: int = 0) -> None:
        """Put a slot into quarantine.

        Raises:
            InfrastructureError: the note cannot be written.
        """
        note = Quarantine(uuid=uuid, reason=reason, pid=pid, boot_id=self._boot_id, since_s=boot_clock())
        name = f"{uuid}.{os.geteuid()}{_SUFFIX}"  # the user id: users cannot replace each other's notes
        try:
            self._folder.replace(name, msgspec.json.encode(note))
        except OSError as error:
            raise InfrastructureError(
                f"{uuid} cannot be put into quarantine: {self._folder.path / name}: {error.strerror}"
            ) from error

    def lift(self, uuid: str) -> bool:
        """End the quarantine of a slot; return False if a note of another user remains."""
        names = [name for name, note in self._read() if note.uuid == uuid]
        return sum(map(self._folder.remove, names)) == len(names)

    def active(self, *, is_alive: Callable[[Quarantine], bool] = lambda _: True) -> dict[str, Quarantine]:
        """Return notes that still hold, by UUID, and remove the others.

        Args:
            is_alive: returns whether the process of a note still holds its GPU.
        """
        notes = {}
        for name, note in self._read():
            # A reboot resets the GPU and ends every process that held it.
            if note.boot_id != self._boot_id or (note.pid and not is_alive(note)):
                self._folder.remove(name)
            else:
                notes[note.uuid] = note
        return notes

    def _read(self) -> Iterator[tuple[str, Quarantine]]:
        for name in self._folder.names(_SUFFIX):
            with contextlib.suppress(OSError, *UNREADABLE):
                note = msgspec.json.decode(self._folder.read(name), type=Quarantine)
                yield name, msgspec.structs.replace(note, reason=plain_text(note.reason))
