"""Limits on memory and processes that were reached: kills and refusals by the kernel, and its order of victims."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from disttest.host.cpu import CgroupMount, detect_cgroups, detect_limits, read_text

_HANDICAP = 300
"""Added to the kernel's badness of ranks (0 to 1000, the share of memory), so that their supervisors outlive them."""


@cache
def own_cgroups() -> tuple[CgroupMount, ...]:
    """Return the cgroups that limit this process. They are looked up once; children inherit the answer."""
    return tuple(
        mount for mount in detect_cgroups() if mount.version == 2 or {"memory", "pids"} & {*mount.controllers}
    )


def count_oom_kills(groups: tuple[CgroupMount, ...]) -> int:
    """Return the number of processes of these groups that the kernel has killed because memory ran out."""
    # Counts of these groups only: v2 includes the groups below, v1 counts each kill in the group of the victim.
    # https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    return sum(
        _number(group, "memory.events" if group.version == 2 else "memory.oom_control", "oom_kill")
        for group in groups
    )


def _count_refusals(groups: tuple[CgroupMount, ...]) -> int:
    """Return how often the kernel has refused a process or thread because of these groups' limits."""
    return sum(_number(group, "pids.events", "max") for group in groups)


def _number(group: CgroupMount, file: str, name: str) -> int:
    # Lines such as `oom_kill 3`, in `memory.events` (v2), `memory.oom_control` (v1) and `pids.events` (both).
    text = read_text(group.place / file)
    return int(dict(line.split()[:2] for line in text.splitlines() if len(line.split()) > 1).get(name, 0))


class Shortage:
    """Counts kills for lack of memory and refused processes in the cgroups of this process, from its creation on.

    Args:
        groups: the cgroups; None: those of this process.
    """

    def __init__(self, groups: tuple[CgroupMount, ...] | None = None) -> None:
        self._groups = own_cgroups() if groups is None else groups
        self._kills, self._refusals = count_oom_kills(self._groups), _count_refusals(self._groups)

    def notes(self) -> Iterator[str]:
        """Yield a line for each limit that was reached, with its value."""
        if count_oom_kills(self._groups) > self._kills:
            yield (
                f"memory ran out: {describe_oom(self._groups)}. Give it more, or run fewer ranks at the same time (--slots)"
            )
        if _count_refusals(self._groups) > self._refusals:
            limits = [
                int(text) for group in self._groups for text in group.files("pids.max") if text.isdigit()
            ]
            yield (
                f"processes ran out: the container may have {min(limits, default=0)} processes and threads. "
                "Raise its limit (--pids-limit), or run fewer ranks at the same time (--slots)"
            )


def describe_oom(groups: tuple[CgroupMount, ...]) -> str:
    """Describe the memory limit that a rank hit when the count of kills rose."""
    limits = detect_limits(groups)
    size = f"{limits.memory / (1 << 20):,.0f} MiB"
    whose = "the limit of its cgroup" if limits.memory < limits.memory_total else "all of this machine"
    return f"the kernel ran out of memory for it ({size}, {whose})"


def volunteer_for_oom(proc: Path = Path("/proc")) -> None:
    """Have the kernel choose this process before its supervisors when memory runs out."""
    # By default it kills the largest process, which may be the controller: oom_score_adj in
    # https://docs.kernel.org/filesystems/proc.html.
    path = proc / "self/oom_score_adj"
    with contextlib.suppress(OSError, ValueError):
        path.write_text(str(min(1000, int(path.read_text()) + _HANDICAP)))
