"""Names of runs on an engine, from which another client can tell whether the one that gave them is alive."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import psutil

from disttest.cluster.job import NAME_PREFIX

_NAME = re.compile(rf"{NAME_PREFIX}(?P<machine>[0-9a-f]{{10}})-(?P<pid>\d+)-(?P<started>[0-9a-f]+)(-j\d+.*)?")


def this_machine() -> str:
    """A digest of the kernel's boot id and the PID namespace: where pids mean what they mean here."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:10]


def new_run_id() -> str:
    """An id for a run of this process: machine, pid and start time name it for good."""
    process = psutil.Process()
    return f"{this_machine()}-{process.pid}-{_started(process)}"


def dead_names(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the jobs whose client ran on this machine and is gone; of others nothing can be known."""
    machine = this_machine()
    matches = ((name, _NAME.fullmatch(name)) for name in names)
    return tuple(
        name
        for name, match in matches
        if match and match["machine"] == machine and not _lives(int(match["pid"]), match["started"])
    )


def _lives(pid: int, started: str) -> bool:
    try:
        return _started(psutil.Process(pid)) == started
    except psutil.NoSuchProcess:
        return False


def _started(process: psutil.Process) -> str:
    return f"{int(process.create_time() * 100):x}"
