"""The files in shared memory: which there are, who has them in hand, and which of them nobody needs."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from disttest.model import Frozen

SHM = Path("/dev/shm")  # noqa: S108 - the very folder to look into

_PID_IN_NAME = re.compile(r"(?:torch|loky|sem\.loky|pymp|nccl|__KMP_REGISTERED_LIB)[-_](\d+)[-_]")
_OF_LIBRARIES = re.compile(r"torch_\d+_|psm_[0-9a-f]|sem\.(mp|loky)-|loky-|pymp-|nccl-|__KMP_REGISTERED_LIB_")
"""Names under which torch, multiprocessing, joblib, NCCL and OpenMP let processes find each other's memory."""


Identity = tuple[int, int]
"""Device and inode of a file."""


class ShmEntry(Frozen):
    """A file in ``/dev/shm``."""

    name: str
    size: int
    device: int
    """Of its file system: each container has a ``/dev/shm`` of its own, and inodes begin at 1 in all of them."""
    inode: int
    uid: int
    made_at_s: float
    """On the wall clock, as the kernel stamps it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.size} bytes)"

    @property
    def identity(self) -> Identity:
        """Which file it is, on the whole machine."""
        return self.device, self.inode


def scan_shm(folder: Path = SHM) -> dict[str, ShmEntry]:
    """Name -> entry, of the files in shared memory."""
    entries = map(scan_entry, folder.glob("*"))
    return {entry.name: entry for entry in entries if entry}


def scan_entry(path: Path) -> ShmEntry | None:
    """A file in shared memory; None if it is gone or no file."""
    try:
        facts = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    return ShmEntry(
        name=path.name,
        size=facts.st_size,
        device=facts.st_dev,
        inode=facts.st_ino,
        uid=facts.st_uid,
        made_at_s=facts.st_ctime,
    )


def pid_in_name(name: str) -> int:
    """The process after which a library has named its file; 0 for other names."""
    match = _PID_IN_NAME.match(name)
    return int(match[1]) if match else 0


def is_abandoned(entry: ShmEntry) -> bool:
    """Whether a file that no process uses has the name of a library's shared memory, and of no living process."""
    pid = pid_in_name(entry.name)
    return bool(_OF_LIBRARIES.match(entry.name)) and not (pid and psutil.pid_exists(pid))


def unused_entries(among: Callable[[ShmEntry], bool], folder: Path = SHM) -> tuple[ShmEntry, ...]:
    """The files among these that are our user's, and that no process has in hand as far as we may look."""
    ours = [entry for entry in scan_shm(folder).values() if entry.uid == os.geteuid() and among(entry)]
    in_use = names_in_use(folder) if ours else ()
    return tuple(entry for entry in ours if entry.name not in in_use)


def names_in_use(folder: Path = SHM) -> frozenset[str]:
    """Names of entries that a living process has mapped or open, as far as we may look."""
    return frozenset(
        path.removeprefix(f"{folder}/")
        for pid in psutil.pids()
        for look in (open_files, mapped_files)
        for _, path in look(pid, folder)
    )


def open_files(pid: int, folder: Path) -> Iterator[tuple[Identity, str]]:
    """Identity and path of each file of a folder of that name that a process has open, in whatever container."""
    with contextlib.suppress(OSError):  # it has ended, or is not ours to look at
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile; the others are open all the same
                path = os.readlink(entry.path)  # noqa: PTH115
                if path.startswith(f"{folder}/"):
                    facts = entry.stat()
                    yield (facts.st_dev, facts.st_ino), path


def mapped_files(pid: int, folder: Path) -> Iterator[tuple[Identity, str]]:
    """Identity and path of each file of a folder of that name that a process has mapped, in whatever container."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if f" {folder}/" in line:
                *_, device, inode, path = line.split(maxsplit=5)
                major, minor = (int(number, 16) for number in device.split(":"))
                yield (os.makedev(major, minor), int(inode)), path


def remove_entry(entry: ShmEntry, folder: Path = SHM) -> str:
    """Remove a file if it is still the one that was found; why it could not be removed, if so."""
    path = folder / entry.name
    try:
        facts = path.lstat()
        if (facts.st_dev, facts.st_ino) == entry.identity:
            path.unlink()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
