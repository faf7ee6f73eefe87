"""Descendants of disttest processes: finding them, ending all of them, and naming the tests that left them."""

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
from disttest.host.proc import age_of, forked_children, has_children, is_alive, is_exiting, stat_of
from disttest.host.process import send_signal
from disttest.limits import KILL_S

# Their command lines end with `-c from multiprocessing.resource_tracker import main;main(9)`, and so on.
_TRACKER, _SERVER = "multiprocessing.resource_tracker", "multiprocessing.forkserver"
"""Processes that Python starts once and keeps. They do not count as leaked."""
_COMPILER = "/_inductor/compile_worker/"
"""torch's compiler starts it once, and fails without it: ``torch/_inductor/compile_worker/subproc_pool.py``."""
_LOOKS = 100
_SHOWN = 80
"""Length of a command line in a message, in characters."""


def children_of(pid: int | None = None) -> set[int]:
    """Return the pids of all living descendants (of this process by default), without zombies."""
    # Fast path: three scans of all processes took a third of the CPU time of a world, on a machine with 200
    # processes.
    if pid is None and not has_children():
        return set()
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {process.pid for process in found if is_alive(process.pid)}


def command_of(pid: int) -> str:
    """Return the command line of a process, or its name if it has none.

    Raises:
        ProcessLookupError: the process has ended.
    """
    try:
        process = psutil.Process(pid)
        # A process has none for a moment while it starts a program, and at its end.
        for _ in range(_LOOKS):
            if (words := process.cmdline()) or is_exiting(pid):
                break
            sleep(0.001)
        return " ".join(words) or process.name()
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(pid) from error


def shown_command(pid: int) -> str:
    """Return the beginning of a command line for messages, without the folder of the program.

    A long path of the interpreter would leave no room for the words that distinguish processes.

    Raises:
        ProcessLookupError: the process has ended.
    """
    try:
        process = psutil.Process(pid)
        program, *words = process.cmdline() or [process.name()]
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(pid) from error
    return _beginning(" ".join([Path(program).name, *words]))


def _beginning(command: str) -> str:
    """Return as many whole words of a command line as have room, and mark an omission."""
    if len(command) <= _SHOWN:
        return command
    words = command[: _SHOWN - 1].rpartition(" ")[0]
    # A word that fills most of the room, such as the path of a script, is worth more than a mark in its place.
    return f"{words} …" if len(words) >= _SHOWN // 2 else f"{command[: _SHOWN - 1]}…"


def reap(pids: Iterable[int]) -> None:
    """Wait for those of the processes that are children of this process and have ended."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def kill_descendants(
    *, spare: Iterable[int] = (), spare_trees: Sequence[int] = (), limit_s: float = KILL_S
) -> tuple[int, ...]:
    """Kill every descendant of this process, including new sessions and orphans; return the survivors.

    The scan is repeated until none is left, because a process may fork between the scan and the kill. The caller
    must have called :func:`disttest.host.process.adopt_orphans`; otherwise double-forked processes are not found.
    Python's resource trackers remove the shared memory of killed processes and then end. They have half of the time
    for that. The tracker of this process is spared.

    Args:
        spare: processes that live on.
        spare_trees: processes that live on with all of their descendants.
        limit_s: how long to try.
    """
    spared = {*spare, *_own_tracker()}
    deadline = monotonic() + limit_s
    pause_s = 0.001
    while True:
        found = children_of() - spared
        # Scanned after the others: processes that a spared process forks meanwhile are spared, too.
        for root in spare_trees:
            found -= {root} | children_of(root)
        for pid in found:
            if monotonic() > deadline - limit_s / 2 or not _is_called(pid, _TRACKER):
                send_signal(pid, signal.SIGKILL)
        # Adopted orphans become zombies of this process, and nothing else awaits them. The exits of spared
        # children belong to their handles.
        reap(_zombies(spared.union(spare_trees)))
        if not found or monotonic() > deadline:
            return tuple(sorted(found))
        sleep(pause_s)
        pause_s = min(0.05, pause_s * 2)


def _own_tracker() -> set[int]:
    """Return the resource tracker of this process, if it has started one."""
    # multiprocessing has no public name for it (Python 3.11 to 3.13):
    # https://github.com/python/cpython/blob/main/Lib/multiprocessing/resource_tracker.py
    pid: int | None = getattr(resource_tracker._resource_tracker, "_pid", None)  # noqa: SLF001
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
    """Return the pids of this process's direct children, and of those that a helper of Python forked for it."""
    children = forked_children()
    return children | {pid for helper in filter(is_helper, children) for pid in forked_children(helper)}


def _pool_workers() -> set[int]:
    """Return the workers of multiprocessing pools, and of torch's compiler."""
    # They end with this process in any case. A pool that loses a worker while it waits for work can never be closed.
    children = multiprocessing.active_children()
    workers = {child.pid for child in children if "PoolWorker" in child.name and child.pid}
    return workers | set(filter(is_compiler, forked_children()))


def is_helper(pid: int) -> bool:
    """Return whether Python started this process for itself."""
    # Forks of its fork server have the same command line and do not count.
    return _is_called(pid, _TRACKER) or (
        _is_called(pid, _SERVER) and not _is_called(_parent_of(pid), _SERVER)
    )


def is_compiler(pid: int) -> bool:
    """Return whether torch's compiler started this process: one for each process that compiles, and workers below it."""
    return _is_called(pid, _COMPILER)


def _would_stay(pid: int) -> bool:
    """Whether a process is not ending, and does not end with the process that started it."""
    return not (is_exiting(pid) or is_helper(pid) or is_compiler(pid))


def _is_called(pid: int, name: str) -> bool:
    with contextlib.suppress(ProcessLookupError):
        # The whole command line: cut to 80 characters, a long path of the interpreter hid the name of the
        # module.
        return name in command_of(pid)
    return False


def _parent_of(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        return int(stat_of(pid)[1])
    return 0


def end_new_children(before: set[int]) -> tuple[str, ...]:
    """Kill the processes that this process has started since, and describe them. Workers of pools are spared.

    Args:
        before: result of :func:`started_children` at the start of the period. These processes live on.
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


_MOST_NAMED = 10
# Start times in /proc count ticks of USER_HZ, which is 100 on x86 and Arm.
_KERNEL_TICK_S = 0.01


def name_strays(pids: Iterable[int], began: Sequence[tuple[str, float]]) -> tuple[tuple[str, str], ...]:
    """Return the node id of the test and a description, for the first few of the processes.

    Args:
        pids: the living processes; one that has ended meanwhile is left out.
        began: each test of the world with its start on the monotonic clock, in order.
    """
    named = []
    for pid in [*filter(_would_stay, sorted(pids))][:_MOST_NAMED]:
        try:
            started_s = monotonic() - age_of(pid)
            process = f"{pid} ({shown_command(pid)})"
        except ProcessLookupError:
            continue
        named.append(_accuse(began, started_s, f"left a process, which was killed: {process}"))
    return tuple(named)


def _accuse(began: Sequence[tuple[str, float]], at_s: float, what: str) -> tuple[str, str]:
    """Find the test that ran at a time, which the kernel counts in 10 ms; name both if two are possible."""
    earlier = [nodeid for nodeid, began_s in began if began_s <= at_s][-1:]
    tests = earlier + [nodeid for nodeid, began_s in began if at_s < began_s <= at_s + _KERNEL_TICK_S]
    return (tests[0], what) if len(tests) == 1 else ("", f"{' or '.join(tests) or 'the world'} {what}")
