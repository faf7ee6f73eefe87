"""Compute threads: limited to one while tests are imported, unlimited where tests run.

OpenMP, MKL and OpenBLAS start their thread pools on first use, and a pool does not survive a fork: the child waits
for threads that it does not have. Imports therefore see one thread. Each rank sets its own number, and tests that
run in this process get the pools that they would have without disttest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

# Read once by each library: OpenMP, MKL, OpenBLAS, numexpr and Apple's Accelerate, in this order.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


_is_limited = False
"""Whether this process has limited the pools of any library."""


def asked_threads() -> dict[str, str]:
    """Return the variables about threads in the environment of this process."""
    environ = os.environ  # noqa: TID251  # the libraries' variables
    return {name: environ[name] for name in _VARIABLES if name in environ}


def single_threaded() -> dict[str, str]:
    """Return the environment of a program whose libraries must not start threads."""
    return dict.fromkeys(_VARIABLES, "1")


def import_single_threaded(asked: Mapping[str, str] | None = None) -> Callable[[], None]:
    """Limit libraries that are loaded from now on to one thread; return the function that undoes it.

    Args:
        asked: the user's variables (:func:`asked_threads`), if this process was started with other ones.
    """
    global _is_limited
    _is_limited = True
    environ = os.environ  # noqa: TID251  # libraries read it when they are loaded
    before = asked_threads() if asked is None else asked
    environ.update(single_threaded())

    def undo() -> None:
        # `before` does not list the variables that the user had not set, so an update alone would leave them
        # at 1.
        for name in _VARIABLES:
            environ.pop(name, None)
        environ.update(before)

    return undo


def allow_threads() -> None:
    """Give the loaded libraries the threads that they would have started with in this process."""
    if not _is_limited:
        return
    cpus = len(os.sched_getaffinity(0))
    openmp = min(asked_threads_of("OMP_NUM_THREADS") or cpus, cpus)
    blas = min(
        asked_threads_of("OPENBLAS_NUM_THREADS") or asked_threads_of("MKL_NUM_THREADS") or openmp, cpus
    )
    limit_threads(openmp=openmp, blas=blas)


def limit_threads(*, openmp: int, blas: int) -> None:
    """Give the loaded libraries that number of threads each, in this process."""
    global _is_limited
    _is_limited = True
    if "numpy" in sys.modules or "torch" in sys.modules:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limits={"openmp": openmp, "blas": blas})
    # Until its own number is set, torch sets OpenMP's to that of MKL at its first parallel region
    # (`init_num_threads` in ATen/ParallelOpenMP.cpp).
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(openmp)


def asked_threads_of(variable: str) -> int:
    """Return the number of threads that the environment requests; 0 if it requests none."""
    # the first of OpenMP's nested levels
    first = os.environ.get(variable, "").partition(",")[0].strip()  # noqa: TID251
    return int(first) if first.isdecimal() else 0
