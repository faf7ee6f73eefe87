"""Compute threads: none while tests are imported, all of them where tests run.

OpenMP, MKL and OpenBLAS start their pools when they are first used, and a pool does not survive a fork:
the child waits for threads that it does not have. So imports see one thread; each rank sets its own
number, and tests that run in this process get the pools that they would have had.
"""

from __future__ import annotations

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


def import_single_threaded() -> Callable[[], None]:
    """Have libraries that are loaded from here on start no threads; returns the undoing."""
    environ = os.environ  # noqa: TID251  # libraries read it when they are loaded
    before = {name: environ.get(name) for name in _VARIABLES}
    environ.update(dict.fromkeys(_VARIABLES, "1"))

    def undo() -> None:
        for name, value in before.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value

    return undo


def allow_threads() -> None:
    """Give the loaded libraries the threads that they would have started with in this process."""
    cpus = len(os.sched_getaffinity(0))
    openmp = min(_asked("OMP_NUM_THREADS") or cpus, cpus)
    blas = min(_asked("OPENBLAS_NUM_THREADS") or _asked("MKL_NUM_THREADS") or openmp, cpus)
    limit_threads(openmp=openmp, blas=blas)


def limit_threads(*, openmp: int, blas: int) -> None:
    """Give the loaded libraries that many threads each, in this process."""
    if "numpy" in sys.modules or "torch" in sys.modules:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limits={"openmp": openmp, "blas": blas})
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(openmp)


def _asked(variable: str) -> int:
    """The number of threads that the environment asks for; 0 where it does not."""
    first = os.environ.get(variable, "").partition(",")[0].strip()  # noqa: TID251  # of OpenMP's nested levels
    return int(first) if first.isdecimal() else 0
