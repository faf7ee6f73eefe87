"""The machine as frozen data: the processors, memory and limits that the kernel grants to this process."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from disttest.model import Frozen, Hardware, Slot


class CpuShare(Frozen):
    """Processors that affinity and the cgroup grant to this process."""

    online: int
    """Logical processors of the host."""
    affinity: int
    """Number of processors that this process may run on (``taskset`` and cpusets)."""
    quota: float | None = None
    """Processors' worth of time per period that the cgroup grants; None without a limit."""

    @property
    def granted(self) -> int:
        """Number of whole processors that can be kept busy at the same time, at least one."""
        # Rounded down: with half a processor more than granted, every rank waits for its turn.
        limit = self.affinity if self.quota is None else min(self.affinity, int(self.quota))
        return max(1, limit)


class Limits(Frozen):
    """Memory and other limits of this process; None means unlimited."""

    memory: int
    """The smaller of the machine's memory and the cgroup's limit."""
    memory_total: int
    shm_size: int = 0
    shm_used: int = 0
    memlock: int | None = None
    open_files: int | None = None


class Machine(Frozen):
    """This machine, or the share of it that this process may use. Plugins add devices in a subclass."""

    cpu: CpuShare
    limits: Limits
    cgroup: str = ""
    """``v1``, ``v2``, ``hybrid``, or empty if none is mounted."""

    @property
    def cpus(self) -> int:
        """Whole processors granted to this process."""
        return self.cpu.granted

    def slots(self, device: str, limit: int | None = None) -> tuple[Slot, ...]:
        """Return the first ``limit`` slots of a device type of torch (``cpu``, ``cuda``)."""
        if device != "cpu":
            return ()
        # CPU slots are not tied to processors: a request for more slots than processors is granted.
        count = self.cpus if limit is None else limit
        return tuple(Slot(name=f"cpu:{index}", index=index) for index in range(count))

    def hardware(self) -> Hardware:
        """Return the part of the machine's data that reports show."""
        return Hardware(
            cpus=self.cpus,
            python=platform.python_version(),
            torch=installed_torch(),
            platform=operating_system(),
            memory=self.limits.memory,
            shm=self.limits.shm_size,
        )


def installed_torch() -> str:
    """Return the version of the installed torch without importing it; empty if there is none."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def operating_system() -> str:
    """Return the result of ``platform.platform()`` without starting a program."""
    kernel, library = os.uname(), "".join(platform.libc_ver())
    return "-".join([kernel.sysname, kernel.release, kernel.machine, *(["with", library] if library else [])])
