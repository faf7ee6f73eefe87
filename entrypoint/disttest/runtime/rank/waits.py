"""What this rank waits in, told to its world: the tool that writes it to the board, put into the observing layer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from disttest import observe
from disttest.deadlock.board_tool import BoardTool
from disttest.runtime.rank.broken_groups import BrokenGroups
from disttest.runtime.rank.facets.process_groups import names_of_groups
from disttest.runtime.rank.failed_waits import FailedWaits
from disttest.runtime.rank.gloo_loops import CalmGlooLoops
from disttest.runtime.rank.late_peers import LatePeers
from disttest.testing.deadlocks import provide_board

_tool: BoardTool | None = None
_late: LatePeers | None = None
_failed: FailedWaits | None = None
_broken: BrokenGroups | None = None


@contextlib.contextmanager
def ready_to_watch() -> Iterator[None]:
    """Have the layer in torch while this process forks worlds, each of which would otherwise take 3 ms to put it there."""
    with observe.observing() if _has_torch() else contextlib.nullcontext():
        yield


def prepare_to_watch() -> None:
    """Put the layer into torch in a process that forks ranks, which saves each of them the time."""
    if _has_torch():
        observe.install()


def watch_waits(board: Path | None, place: int, *, is_reused: bool = False) -> None:
    """From here on this process writes what it waits in.

    Args:
        board: of its world; None: nobody would look.
        place: of this rank there.
        is_reused: the process runs several tests, so that one can break the groups of the next.
    """
    global _tool, _late, _failed, _broken  # one rank per process is what a rank is
    if board is None or not _has_torch():
        return
    _tool = BoardTool(board, place)
    _late = LatePeers(_tool.peers)
    _failed = FailedWaits(_tool.slots, place)
    _broken = BrokenGroups() if is_reused else None
    observe.install(_tool, _late, _failed, CalmGlooLoops(), *filter(None, [_broken]))
    provide_board(_tool.expect)


def begin_waits() -> None:
    """A test begins."""
    if _tool is not None and _late is not None and _failed is not None:
        _tool.begin(has_gap=bool(observe.gaps()))
        _late.begin()
        _failed.begin()
    if _broken is not None:
        _broken.begin()


def broken_groups() -> tuple[str, ...]:
    """Notes on groups that are still alive, and that the test made unusable for the next one."""
    return _broken.among(names_of_groups()) if _broken is not None else ()


def awaited_ranks() -> tuple[int, ...]:
    """The ranks that had not joined the last call whose wait has failed."""
    return _failed.awaited if _failed is not None else ()


def wait_for_late_peers() -> None:
    """The rank is about to end."""
    if _late is not None:
        _late.wait()


def _has_torch() -> bool:
    """Whether torch was imported: without it nobody waits in anything of it."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available()
