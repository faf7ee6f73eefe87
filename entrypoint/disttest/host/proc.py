"""What ``/proc`` tells of processes, and which process a pid means: pids are used again, by others."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from disttest.model import Frozen

_HOST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel: elsewhere NVML's process ids are not ours."""
_HOST_IPC_NAMESPACE = "ipc:[4026531839]"
"""PROC_IPC_INIT_INO of the kernel."""


class ProcessIdentity(Frozen):
    """A process for good: no other one on any machine, at any time, has the same."""

    boot: str
    """The kernel's boot id."""
    namespace: str
    """Its PID namespace: pids of another one mean nothing here."""
    pid: int
    started: int
    """Ticks of the kernel since its boot. The wall clock would be set, and the process seem to be another one."""


def this_process() -> ProcessIdentity:
    """The process that asks."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
    """A process of this PID namespace.

    Raises:
        ProcessLookupError: it is gone.
    """
    namespace = str(Path("/proc/self/ns/pid").readlink())
    return ProcessIdentity(boot=read_boot_id(), namespace=namespace, pid=pid, started=started_at(pid))


def is_running(pid: int, started: int) -> bool:
    """Whether that very process of this PID namespace runs."""
    with contextlib.suppress(ProcessLookupError):
        return started_at(pid) == started and is_alive(pid)
    return False


def read_boot_id(root: Path = Path("/")) -> str:
    """Differs after each boot of the host; the same in all its containers; empty where the kernel does not tell."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def stat_of(pid: int) -> list[str]:
    """The fields behind a process's name; the first is its state, and the third of proc(5).

    Raises:
        ProcessLookupError: it is gone.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError as error:
        raise ProcessLookupError(pid) from error


def started_at(pid: int) -> int:
    """When a process was started, in ticks since the boot.

    Raises:
        ProcessLookupError: it is gone.
    """
    return int(stat_of(pid)[19])  # the 22nd field of all


def first_environment() -> tuple[int, int]:
    """Where the environment that this process was started with lies in its memory: its address and its size in bytes.

    The kernel shows it to others, in forks of this process too.
    """
    start, end = map(int, stat_of(os.getpid())[47:49])  # the 50th and 51st field of all
    return start, end - start


def age_of(pid: int) -> float:
    """Seconds since a process was started, to a hundredth.

    Raises:
        ProcessLookupError: it is gone.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_at(pid) / os.sysconf("SC_CLK_TCK")


def cpu_ticks(pid: int) -> int:
    """CPU time of a process so far, all its threads together, in hundredths of a second.

    Raises:
        ProcessLookupError: it is gone.
    """
    return sum(map(int, stat_of(pid)[11:13]))


def is_at_rest(pid: int) -> bool:
    """Whether all threads of a process wait for something, and none has work to do."""
    try:
        threads = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
        states = {path.read_text().rpartition(")")[2].split()[0] for path in threads}
    except OSError:
        return False
    return states <= {"S", "I"}


def process_state(pid: int) -> str:
    """The kernel's letter for what a process does (``R``, ``S``, ``D``, ``T``, …); empty if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return stat_of(pid)[0]
    return ""


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    return process_state(pid) not in ("", "X", "Z")


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal; true where that cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is None or bool(int(caught[1], 16) >> (signum - 1) & 1)


def has_children() -> bool:
    """Whether this process has any, zombies included; the kernel says so at once and misses none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def forked_children(pid: int | None = None) -> set[int]:
    """Pids of the direct children of a process (this one by default), zombies included; no look at other processes."""
    found: set[int] = set()
    with contextlib.suppress(
        FileNotFoundError, ProcessLookupError
    ):  # it, or one of its threads, ends just now
        for task in Path(f"/proc/{pid or 'self'}/task").iterdir():
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),
                (task / "children").open() as file,
            ):
                found.update(map(int, file.read().split()))
    return found


def descendants(pid: int | None = None) -> frozenset[int]:
    """Pids of all processes below one (this one by default), cheaply: one that moves meanwhile may be missed."""
    found: set[int] = set()
    fresh = forked_children(pid)
    while fresh:
        found |= fresh
        fresh = {child for parent in fresh for child in forked_children(parent)} - found
    return frozenset(found)


def sees_all_users(proc: Path = Path("/proc")) -> bool:
    """Whether whoever may use our shared memory is among the processes that we see."""
    try:
        private = str((proc / "self/ns/ipc").readlink()) != _HOST_IPC_NAMESPACE
    except OSError:
        private = False
    return private or sees_host_pids(proc)


def sees_host_pids(proc: Path = Path("/proc")) -> bool:
    """Whether NVML's process ids mean the same here; not so in a container with its own pid namespace."""
    try:
        return str((proc / "self/ns/pid").readlink()) == _HOST_PID_NAMESPACE
    except OSError:
        return False
