"""The threads of this process besides the main one: a description of each, and whether forking next to it is safe.

The kernel reports the name of every thread and where it waits, for Python's threads and others. A thread is
attributed to the library that most addresses on its stack point into, without the C and C++ runtimes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from disttest.clock import monotonic, sleep
from disttest.host.imports import loaded
from disttest.limits import THREAD_REST_S
from disttest.model import Frozen

_TASKS = Path("/proc/self/task")
_RUNTIMES = re.compile(
    r"/(libc|ld-linux[^/]*|libpthread|libstdc\+\+|libpython[^/]*|python[\d.]*)(?!\w)[^/]*$"
)
_WORD = 8
_DEPTH = 64 * 1024
"""Number of bytes of a stack that are searched."""

_DRIVER = re.compile(r"^libcuda\.so")
_SAFE_LIBRARIES = re.compile(rf"openblas|{_DRIVER.pattern}", re.IGNORECASE)
"""Libraries whose threads do not prevent forking. OpenBLAS ends its pool before every fork (pthread_atfork) and
restarts it when needed. The driver's threads wait for events. NVML starts one without initialising CUDA, which
``fork_hazard`` checks separately.
"""
# They wait for work and hold no lock. A fork lacks them, so it must neither use nor destroy the group.
_OF_GLOO = frozenset({"gloo_tcp_loop", "pt_gloo_runloop"})
"""Threads of a gloo group."""
_SAFE_FUNCTIONS = frozenset({"pytest_rerunfailures.ServerStatusDB.run_server"})
"""It waits for connections of worker processes and holds no lock; ranks never connect."""


class OtherThread(Frozen):
    """A thread other than the main one."""

    tid: int
    name: str
    """Python's name for it; otherwise the kernel's."""
    runs: str
    """The library, or for a thread of Python the function, that it runs; empty if unknown."""
    is_python: bool = False

    @property
    def safe_to_fork_beside(self) -> bool:
        """Whether a fork works without it: it is restarted when needed, or nothing in the fork depends on it."""
        if self.is_python:
            return self.runs in _SAFE_FUNCTIONS
        return bool(_SAFE_LIBRARIES.search(self.runs)) or (self.is_of_gloo and not _has_groups())

    @property
    def is_of_driver(self) -> bool:
        """Whether CUDA's driver, or NVML through it, has started the thread."""
        return not self.is_python and bool(_DRIVER.search(self.runs))

    @property
    def is_of_gloo(self) -> bool:
        """Whether a process group of gloo has started the thread."""
        return not self.is_python and self.name in _OF_GLOO

    def __str__(self) -> str:
        return f"{self.name} of {self.runs}" if self.runs and self.runs != self.name else self.name


class _Mapping(NamedTuple):
    start: int
    end: int
    executable: bool
    path: str


def thread_ids() -> frozenset[int]:
    """Return the kernel's ids of all threads except the main one."""
    return frozenset(int(name) for name in os.listdir(_TASKS)) - {os.getpid()}  # noqa: PTH208


def threads() -> tuple[OtherThread, ...]:
    """Describe all other threads. Threads of native code get a moment to come to rest."""
    found = thread_ids()
    if not found:
        return ()
    # threading.enumerate alone would miss the threads of libraries, which are most of the threads next to
    # torch.
    python = {thread.native_id: thread for thread in threading.enumerate()}
    mappings = tuple(_mappings())
    described = (
        _of_python(tid, python[tid]) if tid in python else _of_library(tid, mappings) for tid in sorted(found)
    )
    return tuple(thread for thread in described if thread is not None)


def end_helpers() -> None:
    """End unneeded threads: the monitor of tqdm's bars, and those of unreachable gloo groups."""
    tqdm = sys.modules.get("tqdm.std")
    monitor = getattr(getattr(tqdm, "tqdm", None), "monitor", None)
    if isinstance(monitor, threading.Thread) and monitor.is_alive() and hasattr(monitor, "exit"):
        # It also joins the thread. tqdm starts another one with the next progress bar.
        monitor.exit()
    if not _OF_GLOO.isdisjoint(_names()):
        # A fork that collects such a group would wait for threads that it does not have.
        gc.collect()


def _names() -> Iterator[str]:
    """Yield the kernel's names of the threads. This reads no stacks."""
    for tid in thread_ids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            yield name_of_thread(tid)


def name_of_thread(tid: int) -> str:
    """Return the kernel's name of a thread of this process.

    Raises:
        OSError: it has ended.
    """
    return (_TASKS / str(tid) / "comm").read_text().strip()


def _has_groups() -> bool:
    """Return whether this process is in a process group that its forks would inherit."""
    groups = loaded("torch.distributed.distributed_c10d")
    # torch has no public list of groups (torch 2.9 to 2.15).
    return groups is not None and bool(groups._world.pg_map)  # noqa: SLF001


def _of_python(tid: int, thread: threading.Thread) -> OtherThread:
    # A subclass that overrides `run` has no `_target`, nor has a thread whose `run` has returned (Python 3.11
    # to 3.13).
    target = getattr(thread, "_target", None) or type(thread).run
    owner = type(thread) if target is type(thread).run else target
    return OtherThread(
        tid=tid,
        name=thread.name,
        runs=f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', '')}".strip("."),
        is_python=True,
    )


def _of_library(tid: int, mappings: Sequence[_Mapping]) -> OtherThread | None:
    """Describe a native thread; None if it has ended meanwhile."""
    deadline_s = monotonic() + THREAD_REST_S
    try:
        name = name_of_thread(tid)
        # The file says only "running" while the thread is on a processor, and then names no stack (proc(5)).
        while len(where := (_TASKS / str(tid) / "syscall").read_text().split()) < 3:
            if monotonic() > deadline_s:
                return OtherThread(tid=tid, name=name, runs="")
            sleep(0.002)
    except FileNotFoundError:
        return None
    except OSError:  # a kernel that does not report it
        return OtherThread(tid=tid, name=name, runs="")
    # The whole line: `202 0x7f2a10 0x80 … 0x7ffd3c28 0x7f2a9f`, the number and six arguments of the system
    # call, stack pointer, program counter.
    stack_pointer, counter = (int(text, 16) for text in where[-2:])
    # A stack also holds old return addresses. The most frequent library counts, the innermost among equals.
    named = Counter(_libraries(stack_pointer, counter, mappings)).most_common(1)
    return OtherThread(tid=tid, name=name, runs=named[0][0] if named else "")


def _libraries(stack_pointer: int, counter: int, mappings: Sequence[_Mapping]) -> Iterator[str]:
    """Yield file names of libraries on a stack, innermost first, without the runtimes."""
    for word in (counter, *_words_above(stack_pointer, mappings)):
        path = next((m.path for m in mappings if m.executable and m.start <= word < m.end), "")
        if path.startswith("/") and not _RUNTIMES.search(path):
            yield Path(path).name


def _words_above(stack_pointer: int, mappings: Sequence[_Mapping]) -> list[int]:
    end = next((m.end for m in mappings if m.start <= stack_pointer < m.end), stack_pointer)
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # noqa: PTH123
        # /proc/self/mem reports an unmapped page by an error. Reading the address directly would crash the
        # process.
        data = os.pread(memory.fileno(), min(end - stack_pointer, _DEPTH), stack_pointer)
    return [
        int.from_bytes(data[at : at + _WORD], sys.byteorder) for at in range(0, len(data) - _WORD + 1, _WORD)
    ]


def _mappings() -> Iterator[_Mapping]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        # `7f2a9e000000-7f2a9e028000 r-xp 00028000 fd:01 1835 /usr/lib/libc.so.6`. A path may contain spaces.
        span, rights, _, _, _, *path = line.split(None, 5)
        start, end = (int(address, 16) for address in span.split("-"))
        yield _Mapping(start, end, "x" in rights, path[0] if path else "")
