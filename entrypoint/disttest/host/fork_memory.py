"""Memory of a process that forks many others: objects that stay shared with the forks, and huge pages.

A fork copies the page tables of its parent, and torch's memory has 60,000 small pages. Measured with torch 2.13 on
Linux 6.18, fork and exit of an empty child: 8 ms before and 4 ms after with the CPU build, 18 and 5 ms with the CUDA
build, whose libraries fill twice the memory. Joining the pages takes 0.3 s, once.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Iterator
from pathlib import Path

from disttest.host.compute_threads import import_single_threaded

# Compared with 0, Python 3.12 counted as frozen by disttest. Nothing was frozen then, and each collection in
# a rank took 0.2 s.
_OF_PYTHON = gc.get_freeze_count()
"""Number of objects that are frozen from the start. Python 3.12 starts with some hundred."""


def is_frozen() -> bool:
    """Return whether this process, or the process that it is a fork of, has frozen its objects (:func:`gc.freeze`)."""
    return gc.get_freeze_count() > _OF_PYTHON


# Each process from which others are forked calls it, and none freezes by itself.
# docs/decisions/0040-three-fork-servers.md
def freeze() -> None:
    """Exclude all current objects from garbage collection (:func:`gc.freeze`), and so share their pages with forks."""
    # A collection of torch's 300,000 objects takes 0.15 s of CPU, and each fork would copy their pages:
    # https://github.com/python/cpython/issues/75739. Garbage stays, too: there is little, and finding it takes as long.
    gc.freeze()


@contextlib.contextmanager
def importing_for_forks() -> Iterator[None]:
    """Within the context, import all that forks of this process share; see :func:`freeze` for its end."""
    # A thread pool that an import starts would make the process unsafe to fork:
    # https://github.com/pytorch/pytorch/issues/17199
    undo = import_single_threaded()
    yield
    undo()
    freeze()


_HUGE = 2 * 1024 * 1024
_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1; older kernels refuse it."""
# Matches `55d0c8a4e000-55d0d1b2f000 rw-p 00000000 00:00 0    [heap]`: private, writable, and of no file
# (device 00:00, inode 0).
_WRITABLE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0 +(\[heap\])?$", re.MULTILINE)


_FORKS_THAT_PAY = 40
"""Number of forks after which huge pages pay off: a run that needs so many new processes needs more."""
_forks = 0


def before_forks(count: int) -> None:
    """Count the forks of the next world; use huge pages once there have been many. Call it before each world.

    Args:
        count: number of processes of the world, including the world itself.
    """
    global _forks  # per process
    before, _forks = _forks, _forks + count
    if before < _FORKS_THAT_PAY <= _forks:
        use_huge_pages()


def use_huge_pages() -> None:
    """Ask the kernel to join the memory that this process has written into huge pages; nothing else changes."""
    # A child that writes to such a page still copies only a small page.
    madvise = ctypes.CDLL(None).madvise
    # Without types ctypes passes an address as a C int of 32 bits.
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, end in _regions(Path("/proc/self/maps").read_text()):
        # The result is ignored: a kernel that refuses leaves small pages, which only cost time.
        madvise(start, end - start, _COLLAPSE)


def _regions(maps: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of complete huge pages in private, anonymous memory."""
    for found in _WRITABLE.finditer(maps):
        start = -(-int(found[1], 16) // _HUGE) * _HUGE
        end = int(found[2], 16) // _HUGE * _HUGE
        if end > start:
            yield start, end
