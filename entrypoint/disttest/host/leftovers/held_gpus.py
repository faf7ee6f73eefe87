"""What a world leaves on its GPUs: processes that hold them, memory, faults."""

from __future__ import annotations

from collections.abc import Collection

from disttest.host.devices.machine import Gpu

_MEANINGFUL_MEMORY = 64 << 20
"""Less than this is the driver's noise."""


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
    if not now.processes and grown > _MEANINGFUL_MEMORY:
        return f"{now.label} has {grown >> 20} MiB more in use than before, by a process that cannot be seen"
    return ""
