"""The files in shared memory: listing them, and finding the processes that use them."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from disttest.model import Frozen

SHM = Path("/dev/shm")  # noqa: S108 - the folder to be scanned

# torch_4711_2931855_0, sem.loky-4711-…, __KMP_REGISTERED_LIB_4711_1000: the first number is the pid of the
# maker.
_PID_IN_NAME = re.compile(r"(?:torch|loky|sem\.loky|pymp|nccl|__KMP_REGISTERED_LIB)[-_](\d+)[-_]")
_OF_LIBRARIES = re.compile(r"torch_\d+_|psm_[0-9a-f]|sem\.(mp|loky)-|loky-|pymp-|nccl-|__KMP_REGISTERED_LIB_")
"""Names under which torch, multiprocessing, joblib, NCCL and OpenMP find shared memory between processes."""


Identity = tuple[int, int]
"""Device and inode of a file."""


class ShmEntry(Frozen):
    """A file in ``/dev/shm``."""

    name: str
    size: int
    device: int
    """Device of its file system: each container has its own ``/dev/shm``, and inodes start at 1 in all of them."""
    inode: int
    uid: int
    made_at_s: float
    """Time on the wall clock, as the kernel stamps it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.size} bytes)"

    @property
    def identity(self) -> Identity:
        """Identity of the file on the whole machine."""
        return self.device, self.inode


def scan_shm(folder: Path = SHM) -> dict[str, ShmEntry]:
    """Return the files in shared memory by name."""
    entries = map(scan_entry, folder.glob("*"))
    return {entry.name: entry for entry in entries if entry}


def scan_entry(path: Path) -> ShmEntry | None:
    """Describe a file in shared memory; None if it is gone or not a regular file."""
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
    """Return the pid that a library has put into a file's name; 0 for other names."""
    match = _PID_IN_NAME.match(name)
    return int(match[1]) if match else 0


def is_abandoned(entry: ShmEntry) -> bool:
    """Return whether an unused file has the name of a library's shared memory, and not that of a living process."""
    pid = pid_in_name(entry.name)
    return bool(_OF_LIBRARIES.match(entry.name)) and not (pid and psutil.pid_exists(pid))


def unused_entries(among: Callable[[ShmEntry], bool], folder: Path = SHM) -> tuple[ShmEntry, ...]:
    """Return those of the files that belong to this user and are not in use by any visible process."""
    ours = [entry for entry in scan_shm(folder).values() if entry.uid == os.geteuid() and among(entry)]
    in_use = names_in_use(folder) if ours else ()
    return tuple(entry for entry in ours if entry.name not in in_use)


def names_in_use(folder: Path = SHM) -> frozenset[str]:
    """Return names of entries that a visible process has mapped or open."""
    return frozenset(
        path.removeprefix(f"{folder}/")
        for pid in psutil.pids()
        for look in (open_files, mapped_files)
        for _, path in look(pid, folder)
    )


def open_files(pid: int, folder: Path) -> Iterator[tuple[Identity, str]]:
    """Yield identity and path of each file that a process has open in a folder of that name, in any container."""
    with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                path = os.readlink(entry.path)  # noqa: PTH115
                if path.startswith(f"{folder}/"):
                    # Through the link in /proc, which reaches a removed file, too.
                    facts = entry.stat()
                    yield (facts.st_dev, facts.st_ino), path


def mapped_files(pid: int, folder: Path) -> Iterator[tuple[Identity, str]]:
    """Yield identity and path of each file that a process has mapped in a folder of that name, in any container."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if f" {folder}/" in line:
                # "7f1c8a000000-7f1c8a001000 rw-s 00000000 00:1b 42    /dev/shm/torch_1_2_0", the device in
                # hexadecimal.
                *_, device, inode, path = line.split(maxsplit=5)
                major, minor = (int(number, 16) for number in device.split(":"))
                yield (os.makedev(major, minor), int(inode)), path


def remove_entry(entry: ShmEntry, folder: Path = SHM) -> str:
    """Remove a file if its identity is unchanged; return why it could not be removed, or an empty string."""
    path = folder / entry.name
    try:
        facts = path.lstat()
        # Another process may have made a file of this name since.
        if (facts.st_dev, facts.st_ino) == entry.identity:
            path.unlink()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
