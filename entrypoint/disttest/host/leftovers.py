"""What a test leaves on the machine: shared memory, processes, memory of GPUs. Found, named and cleaned.

Only what this run made counts: entries that were not there when the run began, that belong to our user, and
that no living process has open or mapped.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from disttest.host.devices.machine import Gpu
from disttest.model import Frozen

SHM = Path("/dev/shm")  # noqa: S108 - the very folder to look into

_PID_IN_NAME = re.compile(r"(?:torch|loky|sem\.loky|pymp|nccl)[-_](\d+)[-_]")
_MOST_SUSPECTS = 3
_MEANINGFUL_GPU_MEMORY = 64 << 20
"""Less than this is the driver's noise."""
_HOST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel: elsewhere NVML's process ids are not ours."""


class ShmEntry(Frozen):
    """A file in ``/dev/shm``."""

    name: str
    size: int
    inode: int
    uid: int
    made_at_s: float
    """On the wall clock, as the kernel stamps it."""


class Litter(Frozen):
    """An entry that somebody forgot, and who."""

    entry: ShmEntry
    tests: tuple[str, ...]
    """Node ids of those that ran when it was made; one, where its name holds the pid of a rank."""
    certain: bool = False
    """Whether its name says that one of our ranks made it."""

    def __str__(self) -> str:
        named = self.tests[:_MOST_SUSPECTS]
        rest = len(self.tests) - len(named)
        whose = " or ".join([*named, *([f"{rest} others"] if rest else [])]) or "this run"
        return f"shared memory {self.entry.name} ({self.entry.size} bytes) was left by {whose}"


class Period(Frozen):
    """When a test ran, and in which processes."""

    nodeid: str
    began_at_s: float
    ended_at_s: float
    pids: tuple[int, ...] = ()


def scan_shm(folder: Path = SHM) -> dict[str, ShmEntry]:
    """Name -> entry, of the files in shared memory."""
    found = {}
    for path in folder.glob("*"):
        try:
            facts = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(facts.st_mode):
            found[path.name] = ShmEntry(
                name=path.name,
                size=facts.st_size,
                inode=facts.st_ino,
                uid=facts.st_uid,
                made_at_s=facts.st_ctime,
            )
    return found


def names_in_use(folder: Path = SHM, proc: Path = Path("/proc")) -> frozenset[str]:
    """Names of entries that a living process has mapped or open, as far as we may look."""
    prefix = f"{folder}/"
    used: set[str] = set()
    for process in proc.glob("[0-9]*"):
        used.update(_mapped(process, prefix))
        used.update(_opened(process, prefix))
    return frozenset(used)


def _mapped(process: Path, prefix: str) -> set[str]:
    try:
        lines = (process / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {line.partition(prefix)[2] for line in lines if prefix in line}


def _opened(process: Path, prefix: str) -> set[str]:
    used = set()
    try:
        for link in (process / "fd").iterdir():
            target = str(link.readlink())
            if target.startswith(prefix):
                used.add(target.removeprefix(prefix))
    except OSError:
        return used
    return used


def find_litter(
    before: Mapping[str, ShmEntry],
    after: Mapping[str, ShmEntry],
    periods: Sequence[Period],
    *,
    in_use: Collection[str],
    uid: int,
) -> tuple[Litter, ...]:
    """Entries that are new, ours and in nobody's use, with the tests that may have left them. Pure."""
    fresh = [entry for entry in after.values() if not _known(before, entry)]
    ours = [entry for entry in fresh if entry.uid == uid and entry.name not in in_use]
    return tuple(_attribute(entry, periods) for entry in ours)


def _known(before: Mapping[str, ShmEntry], entry: ShmEntry) -> bool:
    return entry.name in before and before[entry.name].inode == entry.inode


def _attribute(entry: ShmEntry, periods: Sequence[Period]) -> Litter:
    match = _PID_IN_NAME.match(entry.name)
    makers = tuple(period.nodeid for period in periods if match and int(match[1]) in period.pids)
    if makers:
        return Litter(entry=entry, tests=makers, certain=True)
    running = (p.nodeid for p in periods if p.began_at_s <= entry.made_at_s <= p.ended_at_s)
    return Litter(entry=entry, tests=tuple(running))


def remove_litter(litter: Iterable[Litter], folder: Path = SHM) -> tuple[str, ...]:
    """Remove entries that are still the ones that were found; what could not be removed, and why."""
    failed = []
    for each in litter:
        path = folder / each.entry.name
        try:
            if path.lstat().st_ino == each.entry.inode:
                path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            failed.append(f"{path}: {error.strerror}")
    return tuple(failed)


def left_processes(root_pid: int, known: Collection[int]) -> tuple[str, ...]:
    """Descendants of a process that nobody accounts for, as text: ``pid 123: sleep 600``.

    The root is a child subreaper: what a rank started and left behind is its descendant in the end.
    """
    try:
        children = psutil.Process(root_pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return ()
    strangers = (child for child in children if child.pid not in known)
    return tuple(_describe_process(child) for child in strangers)


def _describe_process(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        command = "?"
    return f"pid {process.pid}: {command}"


def gpu_leftover(then: Gpu, now: Gpu, *, ours: Collection[int] | None = None) -> str:
    """What holds a GPU now that did not before, or what is wrong with it; empty when nothing. Pure.

    Args:
        then: before its world had started.
        now: after its world has ended.
        ours: where others use the GPU too, the only process ids that count.
    """
    if now.fault:
        return now.fault
    known = {process.pid for process in then.processes}
    new = [process for process in now.processes if process.pid not in known and process.computes]
    if ours is not None:
        new = [process for process in new if process.pid in ours]
    if new:
        names = ", ".join(f"{process.name or 'process'} (pid {process.pid})" for process in new)
        return f"{now.label} is still held by {names}"
    if ours is not None:
        return ""
    grown = now.memory_used - then.memory_used
    if not now.processes and grown > _MEANINGFUL_GPU_MEMORY:
        return f"{now.label} has {grown >> 20} MiB more in use than before, by a process that can not be seen"
    return ""


def sees_host_pids(proc: Path = Path("/proc")) -> bool:
    """Whether NVML's process ids mean the same here; not so in a container with its own pid namespace."""
    try:
        return str((proc / "self/ns/pid").readlink()) == _HOST_PID_NAMESPACE
    except OSError:
        return False
