"""Limits of the shell (``ulimit``) that are too small for a run."""

from __future__ import annotations

import resource

from disttest.errors import InfrastructureError
from disttest.model import Frozen

_FILES = 48
"""Open files of a world process without ranks: 34 were counted with torch 2.13, and evidence needs a few more."""
_FILES_OF_RANK = 3
"""Open files for each rank: a channel, a log, and a connection to the store (counted with 2, 8 and 24 ranks)."""
_MIB = 1 << 20


class _Floor(Frozen):
    """The smallest limit with which a run of two ranks works."""

    number: int
    what: str
    least: int
    unit: int
    """Bytes or files in one unit of ``flag``."""
    flag: str


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


def lack_of_open_files(ranks: int) -> str:
    """Explain why a world cannot run with this limit on open files; empty if it can.

    Args:
        ranks: number of ranks of the world.
    """
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
