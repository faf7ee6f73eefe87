"""GPUs that must not be used for now: notes beside the lock files, which all runners of the host read.

A quarantine ends when the host has been rebooted, when the process that would not let go is gone, or when
a preflight finds the GPU in order (``disttest doctor`` lifts it then).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from disttest.host.lockfiles import boot_clock
from disttest.model import Frozen

_SUFFIX = ".quarantine"


class Quarantine(Frozen):
    """Why a slot is not used."""

    uuid: str
    reason: str
    pid: int = 0
    """The process that holds the GPU and does not die; 0 where the GPU itself is at fault."""
    boot_id: str = ""
    since_s: float = 0.0
    """On the boot clock."""


def read_boot_id(root: Path = Path("/")) -> str:
    """Differs after each boot of the host; the same in all its containers."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class QuarantineNotes:
    """The notes in a lease directory."""

    def __init__(self, directory: Path, *, boot_id: str | None = None) -> None:
        self._directory = directory
        self._boot_id = read_boot_id() if boot_id is None else boot_id

    def add(self, uuid: str, reason: str, *, pid: int = 0) -> None:
        """Put a slot into quarantine, by rename: a reader sees all of the note or none."""
        note = Quarantine(uuid=uuid, reason=reason, pid=pid, boot_id=self._boot_id, since_s=boot_clock())
        fresh = self._directory / f".{uuid}.{os.getpid()}"
        fresh.write_bytes(msgspec.json.encode(note))
        fresh.rename(self._path(uuid))

    def lift(self, uuid: str) -> None:
        """Let a slot be used again."""
        self._path(uuid).unlink(missing_ok=True)

    def active(self, *, is_alive: Callable[[Quarantine], bool] = lambda _: True) -> dict[str, Quarantine]:
        """UUID -> note, of those that still hold; those that do not are removed.

        Args:
            is_alive: whether the process of a note still holds its GPU.
        """
        notes = {}
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            note = _read(path)
            if note is None:
                continue
            if note.boot_id != self._boot_id or (note.pid and not is_alive(note)):
                path.unlink(missing_ok=True)
            else:
                notes[note.uuid] = note
        return notes

    def _path(self, uuid: str) -> Path:
        return self._directory / f"{uuid}{_SUFFIX}"


def _read(path: Path) -> Quarantine | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Quarantine)
    except (OSError, msgspec.DecodeError):
        return None
