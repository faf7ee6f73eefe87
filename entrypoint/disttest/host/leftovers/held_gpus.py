"""Leftovers of a world on its GPUs: processes that hold them, memory, faults."""

from __future__ import annotations

from collections.abc import Collection

from disttest.host.devices.machine import Gpu

_MEANINGFUL_MEMORY = 64 << 20
"""Growth of memory below this is caused by the driver itself."""


def gpu_leftover(then: Gpu, now: Gpu, *, ours: Collection[int] | None = None) -> str:
    """Describe a process that holds a GPU and did not before, or the GPU's fault; empty if there is neither. Pure.

    Args:
        then: the GPU before its world started.
        now: the GPU after its world ended.
        ours: the only process ids that count, if other runs use the GPU, too.
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
    if not now.processes and grown > _MEANINGFUL_MEMORY:
        return f"{now.label} has {grown >> 20} MiB more in use than before, by a process that cannot be seen"
    return ""
