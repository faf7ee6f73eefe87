"""Memory that ran out: whether the kernel killed a process of ours for it, and whom it is to take first."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

from disttest.host.devices.cpu import CgroupMount, detect_cgroups, detect_limits, read_text

_HANDICAP = 300
"""Added to the kernel's badness (0 to 1000, the share of memory) of ranks: the supervisors outlive them."""


@cache
def own_cgroups() -> tuple[CgroupMount, ...]:
    """The memory cgroups of this process, looked up once; children inherit the answer and the group."""
    return tuple(mount for mount in detect_cgroups() if mount.version == 2 or "memory" in mount.controllers)


def count_oom_kills(groups: tuple[CgroupMount, ...]) -> int:
    """How many processes of these groups the kernel has killed because memory ran out."""
    return sum(_kills(group) for group in groups)


def _kills(group: CgroupMount) -> int:
    # Of this very group: v2 counts those of groups below in, v1 counts each where the victim sat.
    text = read_text(group.place / ("memory.events" if group.version == 2 else "memory.oom_control"))
    words = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) > 1)
    return int(words.get("oom_kill", 0))


def describe_oom(groups: tuple[CgroupMount, ...]) -> str:
    """What to say of a rank that was killed while the count rose."""
    limits = detect_limits(groups)
    size = f"{limits.memory / (1 << 20):,.0f} MiB"
    whose = "the limit of its cgroup" if limits.memory < limits.memory_total else "all of this machine"
    return f"the kernel ran out of memory for it ({size}, {whose})"


def volunteer_for_oom(proc: Path = Path("/proc")) -> None:
    """Have the kernel take this process before those that supervise it, when memory runs out."""
    path = proc / "self/oom_score_adj"
    with contextlib.suppress(OSError, ValueError):
        path.write_text(str(min(1000, int(path.read_text()) + _HANDICAP)))
