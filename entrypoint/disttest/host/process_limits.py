"""Limits of the shell (``ulimit``) and of the container that are too small for a run, or for one of its worlds."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from disttest.errors import InfrastructureError
from disttest.model import FEW_RANKS, Frozen

if TYPE_CHECKING:
    from disttest.host.cpu import CgroupMount

_FILES = 48
"""Open files of a world process without ranks: 34 were counted with torch 2.13, and evidence needs a few more."""
_FILES_OF_RANK = 3
"""Open files for each rank: a channel, a log, and a connection to the store (counted with 2, 8 and 24 ranks)."""
_TASKS_OF_RANK = 5
"""Threads of a rank: its main thread, the one that answers for its collectives, and three of gloo (torch 2.13)."""
_MEMORY_OF_RANK_MIB = 14
"""A lower bound: with an empty test a rank has 15 MiB of private memory (``python bench/wide.py``)."""
_MIB = 1 << 20


class _Floor(Frozen):
    """The smallest limit with which a run of two ranks works."""

    number: int
    what: str
    least: int
    unit: int
    """Bytes or files in one unit of ``flag``."""
    flag: str


# Without the check, `ulimit -n 12` blamed a plugin, and `-n 32` or `-f 8` ended in tracebacks.
_FLOORS = (
    _Floor(number=resource.RLIMIT_NOFILE, what="open files", least=64, unit=1, flag="-n"),
    # bash and dash count in units of 1,024 and 512 bytes; the larger value suits both.
    _Floor(
        number=resource.RLIMIT_FSIZE, what="the size of files in bytes", least=16 * _MIB, unit=512, flag="-f"
    ),
)


def check_limits() -> None:
    """Refuse a run that a limit of the shell would break.

    Raises:
        InfrastructureError: a limit is too small; the message names its value and the smallest that works.
    """
    for floor in _FLOORS:
        allowed = _allowed(floor.number)
        if allowed is not None and allowed < floor.least:
            raise InfrastructureError(
                f"the limit on {floor.what} is {allowed:,}, and a run needs {floor.least:,}: raise it with "
                f"`ulimit {floor.flag} {floor.least // floor.unit}`"
            )


def lack_for_ranks(ranks: int, groups: tuple[CgroupMount, ...] | None = None) -> str:
    """Explain why a world cannot run within the limits of this process; empty if it can.

    Args:
        ranks: number of ranks of the world.
        groups: cgroups of this process; None to look them up.
    """
    if lack := _lack_of_open_files(ranks):
        return lack
    # Imported late: every command imports this module, and these load `subprocess`.
    from disttest.host.cpu import detect_limits
    from disttest.host.oom import own_cgroups

    groups = own_cgroups() if groups is None else groups
    # Small worlds are checked, too: with --pids-limit 12 one of two ranks got no thread, and its test was
    # blamed. Reading the limit takes 0.06 ms.
    if (lack := _lack_of_processes(ranks, groups)) or ranks <= FEW_RANKS:
        return lack  # tests decide how much memory a smaller world needs; if it runs out, the notes of the run name it
    return _lack_of_memory(ranks, detect_limits(groups).memory)


def _lack_of_processes(ranks: int, groups: tuple[CgroupMount, ...]) -> str:
    needed = _TASKS_OF_RANK * ranks
    needs = f"and a world of {ranks} ranks needs {needed:,}"
    # The kernel does not apply the limit of the shell to root.
    allowed = _allowed(resource.RLIMIT_NPROC) if os.geteuid() else None
    # A lower bound: the kernel counts the threads of all processes of the user, and these are not added here.
    if allowed is not None and allowed < needed:
        return f"the limit on processes is {allowed:,}, {needs}: raise it with `ulimit -u {needed}`"
    for group in groups:
        # https://docs.kernel.org/admin-guide/cgroup-v2.html#pid-interface-files
        for limit, used in zip(group.files("pids.max"), group.files("pids.current"), strict=False):
            if limit.isdigit() and used.isdigit() and int(limit) - int(used) < needed:
                return (
                    f"the limit on processes is {int(limit):,} with {int(used):,} in use, {needs}: raise --pids-limit of the "
                    "container"
                )
    return ""


def _lack_of_memory(ranks: int, limit: int) -> str:
    memory, needed = limit // _MIB, _MEMORY_OF_RANK_MIB * ranks
    if memory >= needed:
        return ""
    return f"the memory is {memory:,} MiB, and a world of {ranks} ranks needs {needed:,} MiB: run fewer ranks"


def _lack_of_open_files(ranks: int) -> str:
    # Without this check the store stops accepting connections, and the ranks wait for it until their time limit.
    allowed, needed = _allowed(resource.RLIMIT_NOFILE), _FILES + _FILES_OF_RANK * ranks
    if allowed is None or allowed >= needed:
        return ""
    return (
        f"the limit on open files is {allowed:,}, and a world of {ranks} ranks needs {needed:,}: raise it with "
        f"`ulimit -n {needed}`"
    )


def _allowed(number: int) -> int | None:
    """Return the soft limit; None if there is none."""
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else soft
