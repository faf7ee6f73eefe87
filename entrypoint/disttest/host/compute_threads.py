"""Compute threads: none while tests are imported, all of them where tests run.

OpenMP, MKL and OpenBLAS start their pools when they are first used, and a pool does not survive a fork:
the child waits for threads that it does not have. So imports see one thread; each rank sets its own
number, and tests that run in this process get the pools that they would have had.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


_is_limited = False
"""Whether something in this process has other pools than it would have had."""


def asked_threads() -> str:
    """What the environment of this process says about threads, as JSON."""
    environ = os.environ  # noqa: TID251  # of the libraries
    return json.dumps({name: environ[name] for name in _VARIABLES if name in environ})


def single_threaded() -> dict[str, str]:
    """The environment of a program whose libraries are to start no threads."""
    return dict.fromkeys(_VARIABLES, "1")


def import_single_threaded(told: str | None = None) -> Callable[[], None]:
    """Have libraries that are loaded from here on start no threads; returns the undoing.

    Args:
        told: what the environment said (:func:`asked_threads`), where this process was started with another one.
    """
    global _is_limited
    _is_limited = True
    environ = os.environ  # noqa: TID251  # libraries read it when they are loaded
    before = json.loads(told or asked_threads())
    environ.update(single_threaded())

    def undo() -> None:
        for name in _VARIABLES:
            environ.pop(name, None)
        environ.update(before)

    return undo


def allow_threads() -> None:
    """Give the loaded libraries the threads that they would have started with in this process."""
    if not _is_limited:
        return
    cpus = len(os.sched_getaffinity(0))
    openmp = min(_asked("OMP_NUM_THREADS") or cpus, cpus)
    blas = min(_asked("OPENBLAS_NUM_THREADS") or _asked("MKL_NUM_THREADS") or openmp, cpus)
    limit_threads(openmp=openmp, blas=blas)


def limit_threads(*, openmp: int, blas: int) -> None:
    """Give the loaded libraries that many threads each, in this process."""
    global _is_limited
    _is_limited = True
    if "numpy" in sys.modules or "torch" in sys.modules:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limits={"openmp": openmp, "blas": blas})
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(openmp)


def _asked(variable: str) -> int:
    """The number of threads that the environment asks for; 0 where it does not."""
    first = os.environ.get(variable, "").partition(",")[0].strip()  # noqa: TID251  # of OpenMP's nested levels
    return int(first) if first.isdecimal() else 0
