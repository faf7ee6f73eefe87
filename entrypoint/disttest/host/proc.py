"""Processes in ``/proc``, and identities of processes: pids are reused."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from disttest.model import Frozen

# https://github.com/torvalds/linux/blob/master/include/linux/sched.h
_PF_EXITING = 0x4
_HOST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel. In other namespaces NVML's process ids do not match."""
_HOST_IPC_NAMESPACE = "ipc:[4026531839]"
"""PROC_IPC_INIT_INO of the kernel."""


class ProcessIdentity(Frozen):
    """A unique identity of a process on any machine, at any time."""

    boot: str
    """The kernel's boot id."""
    namespace: str
    """Its PID namespace. Pids of another namespace have no meaning here."""
    pid: int
    started: int
    """Start in ticks since the boot. A start on the wall clock would change whenever that clock is set."""


def this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
    """Return the identity of a process of this PID namespace.

    Raises:
        ProcessLookupError: the process has ended.
    """
    namespace = str(Path("/proc/self/ns/pid").readlink())
    return ProcessIdentity(boot=read_boot_id(), namespace=namespace, pid=pid, started=started_at(pid))


def is_running(pid: int, started: int) -> bool:
    """Return whether exactly that process of this PID namespace is running."""
    with contextlib.suppress(ProcessLookupError):
        return started_at(pid) == started and is_alive(pid)
    return False


def read_boot_id(root: Path = Path("/")) -> str:
    """Return the boot id, which all containers of the host share; empty if the kernel does not report it."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def stat_of(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` behind the name; the first is the state, the third field in proc(5).

    Raises:
        ProcessLookupError: the process has ended.
    """
    try:
        # The name is in brackets and may contain spaces and brackets itself, so the last bracket ends it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError as error:
        raise ProcessLookupError(pid) from error


def started_at(pid: int) -> int:
    """Return when a process was started, in ticks since the boot.

    Raises:
        ProcessLookupError: the process has ended.
    """
    return int(stat_of(pid)[19])  # field 22 in proc(5)


def first_environment() -> tuple[int, int]:
    """Return address and size in bytes of the environment that this process was started with."""
    # The kernel shows this memory to other processes, and in forks the memory of the first process.
    start, end = map(int, stat_of(os.getpid())[47:49])  # fields 50 and 51 in proc(5)
    return start, end - start


def age_of(pid: int) -> float:
    """Return the seconds since a process was started, to a hundredth.

    Raises:
        ProcessLookupError: the process has ended.
    """
    # CLOCK_BOOTTIME, as the kernel counts the start: it includes the time in suspend, which CLOCK_MONOTONIC
    # does not.
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_at(pid) / os.sysconf("SC_CLK_TCK")


def process_state(pid: int) -> str:
    """Return the kernel's letter for the state of a process (``R``, ``S``, ``D``, ``T``, …); empty if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return stat_of(pid)[0]
    return ""


def is_exiting(pid: int) -> bool:
    """Return whether a process is ending or has ended. It loses its memory, with its command line, before its end."""
    try:
        return bool(int(stat_of(pid)[6]) & _PF_EXITING)
    except ProcessLookupError:
        return True


def is_alive(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
    # Z is a zombie, which its parent has not awaited. X shows for an instant while the kernel removes a
    # process.
    return process_state(pid) not in ("", "X", "Z")


def catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal; True if that cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    # `SigCgt: 0000000180004a02`: bit N-1 is signal N.
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is None or bool(int(caught[1], 16) >> (signum - 1) & 1)


def has_children() -> bool:
    """Return whether this process has children, including zombies. The call is cheap and misses none."""
    try:
        # WNOWAIT leaves the zombie to its owner.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def forked_children(pid: int | None = None) -> set[int]:
    """Return the pids of the direct children of a process (this one by default), including zombies."""
    # Only the process itself is read, and no others.
    found: set[int] = set()
    with contextlib.suppress(
        FileNotFoundError, ProcessLookupError
    ):  # it, or one of its threads, ends just now
        # Each thread lists only the children that it has forked itself.
        for task in Path(f"/proc/{pid or 'self'}/task").iterdir():
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),
                (task / "children").open() as file,
            ):
                found.update(map(int, file.read().split()))
    return found


def descendants(pid: int | None = None) -> frozenset[int]:
    """Return the pids of all descendants of a process (this one by default)."""
    # A process that is re-parented meanwhile may be missed.
    found: set[int] = set()
    fresh = forked_children(pid)
    while fresh:
        found |= fresh
        fresh = {child for parent in fresh for child in forked_children(parent)} - found
    return frozenset(found)


def sees_all_users(proc: Path = Path("/proc")) -> bool:
    """Return whether all processes that may use this process's shared memory are visible here."""
    try:
        private = str((proc / "self/ns/ipc").readlink()) != _HOST_IPC_NAMESPACE
    except OSError:
        private = False
    return private or sees_host_pids(proc)


def sees_host_pids(proc: Path = Path("/proc")) -> bool:
    """Return whether NVML's process ids are valid here; they are not in a container with its own pid namespace."""
    try:
        return str((proc / "self/ns/pid").readlink()) == _HOST_PID_NAMESPACE
    except OSError:
        return False
