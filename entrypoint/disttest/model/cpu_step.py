"""What processes cost."""

from __future__ import annotations

from disttest.model.frozen import Count, Frozen, Seconds


class CpuStep(Frozen):
    """What one step in the life of a process took."""

    role: str
    """What the process is: ``rank``, ``world``, ``controller``."""
    step: str
    cpu_s: Seconds
    faults: Count = 0
    """Pages that the kernel had to map or copy for it."""
