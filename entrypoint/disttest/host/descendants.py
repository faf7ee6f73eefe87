"""All that processes of ours have started, and what they have started: found, and ended to the last one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterable, Sequence
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

from disttest.clock import monotonic, sleep
from disttest.host.proc import forked_children, has_children, is_alive, stat_of
from disttest.host.process import send_signal
from disttest.limits import KILL_S

_TRACKER, _SERVER = "multiprocessing.resource_tracker", "multiprocessing.forkserver"
"""Processes that Python starts once and keeps; nobody has left them behind."""
_SHOWN = 80
"""Characters of a command line in a message."""


def children_of(pid: int | None = None) -> set[int]:
    """Pids of all living descendants (of this process by default), zombies excluded."""
    if pid is None and not has_children():  # what a look at all processes would take milliseconds to say
        return set()
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {process.pid for process in found if is_alive(process.pid)}


def command_of(pid: int) -> str:
    """The command line of a process, or its name where it has none.

    Raises:
        ProcessLookupError: it is gone.
    """
    try:
        process = psutil.Process(pid)
        return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(pid) from error


def shown_command(pid: int) -> str:
    """The command line as messages show it: without the folder of the program, and its beginning only.

    A long path to the interpreter would leave no room for the words that tell processes apart.

    Raises:
        ProcessLookupError: it is gone.
    """
    try:
        process = psutil.Process(pid)
        program, *words = process.cmdline() or [process.name()]
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(pid) from error
    return " ".join([Path(program).name, *words])[:_SHOWN]


def reap(pids: Iterable[int]) -> None:
    """Collect those of the given processes that are our children and have ended."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def kill_descendants(
    *, spare: Iterable[int] = (), spare_trees: Sequence[int] = (), limit_s: float = KILL_S
) -> tuple[int, ...]:
    """Kill every descendant of this process, new sessions and orphans included; return the survivors.

    Repeats until none is left, because a process may fork between the look and the kill. The caller
    must be the adopter of orphans (:func:`disttest.host.process.adopt_orphans`), else double-forked ones are out of sight.
    Python's trackers remove what the killed ones have in shared memory, and end by themselves: they have half of the
    time for that. This process's own lives as long as it does.

    Args:
        spare: processes that live on.
        spare_trees: processes that live on with all that they start.
        limit_s: how long to try.
    """
    spared = {*spare, *_own_tracker()}
    deadline = monotonic() + limit_s
    pause_s = 0.001
    while True:
        found = children_of() - spared
        # Looked at after the others: what a spared process forks meanwhile is spared too.
        for root in spare_trees:
            found -= {root} | children_of(root)
        for pid in found:
            if monotonic() > deadline - limit_s / 2 or not _is_called(pid, _TRACKER):
                send_signal(pid, signal.SIGKILL)
        reap(_zombies(spared.union(spare_trees)))
        if not found or monotonic() > deadline:
            return tuple(sorted(found))
        sleep(pause_s)
        pause_s = min(0.05, pause_s * 2)


def _own_tracker() -> set[int]:
    """The process that removes what this one has in shared memory, if it has started one."""
    pid: int | None = getattr(resource_tracker._resource_tracker, "_pid", None)  # noqa: SLF001 - it has no other name
    return {pid} if pid else set()


def _zombies(spared: set[int]) -> set[int]:
    if not has_children():
        return set()
    try:
        children = psutil.Process().children()
    except psutil.NoSuchProcess:
        return set()
    return {child.pid for child in children if child.pid not in spared and not is_alive(child.pid)}


def started_children() -> set[int]:
    """Pids of the direct children of this process, and of those that a helper of Python's has forked for it."""
    children = forked_children()
    return children | {pid for helper in filter(is_helper, children) for pid in forked_children(helper)}


def _pool_workers() -> set[int]:
    """They end with this process in any case; a pool that loses one while it waits for work can never be closed."""
    children = multiprocessing.active_children()
    return {child.pid for child in children if "PoolWorker" in child.name and child.pid}


def is_helper(pid: int) -> bool:
    """Whether Python has started this process for itself; what its fork server forks has the same command line."""
    return _is_called(pid, _TRACKER) or (
        _is_called(pid, _SERVER) and not _is_called(_parent_of(pid), _SERVER)
    )


def _is_called(pid: int, name: str) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return name in command_of(pid)
    return False


def _parent_of(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        return int(stat_of(pid)[1])
    return 0


def end_new_children(before: set[int]) -> tuple[str, ...]:
    """End what this process has started since, and name it; what was started earlier lives on, and so do workers of pools.

    Args:
        before: :func:`started_children` then.
    """
    before = before | _pool_workers()
    helpers = set(filter(is_helper, forked_children()))
    left = {}
    for pid in filter(is_alive, started_children() - before - helpers):
        with contextlib.suppress(ProcessLookupError):
            left[pid] = f"process {pid} ({shown_command(pid)}), which was killed"
    if left:
        kill_descendants(spare=helpers, spare_trees=tuple(before - helpers))
    return tuple(left.values())
