"""CPU cost of processes."""

from __future__ import annotations

from disttest.model.frozen import Count, Frozen, Seconds


class CpuStep(Frozen):
    """CPU cost of one step in the life of a process."""

    role: str
    """Kind of process: ``rank``, ``world``, ``controller``."""
    step: str
    cpu_s: Seconds
    faults: Count = 0
    """Number of pages that the kernel had to map or copy."""
