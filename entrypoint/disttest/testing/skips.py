"""Decorators that skip a test by the machine or the world, if possible before any process starts.

Each attaches its check to the method, and the runner evaluates it before it starts a process. If the answer is only
known in a rank, which has ``WORLD_SIZE``, the rank exits with a code of the skip table.
"""

from __future__ import annotations

import functools
import os
import sys
import unittest
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from disttest.planning.backends import BACKENDS
from disttest.results.exit_codes import TEST_SKIPS, TestSkip

Method = TypeVar("Method", bound=Callable[..., Any])
Check = Callable[[], TestSkip | None]
ATTRIBUTE = "__disttest_checks__"

ACCELERATOR_DIST_BACKENDS = [row.name for row in BACKENDS if row.needs_accelerator]
DDP_RANK_DEVICES = ["cuda", "xpu"]
# torch 2.13 requires 8, to spare its CI machines with four GPUs.
_ENOUGH_RANKS = 3
"""Least number of ranks for group tests, which use ranks 1 and 2."""


class DistTestCases:
    """Tables of backends that lack an operation, and of backends that have a feature."""

    skip_collective: dict[str, set[str]] = {  # noqa: RUF012  # third-party backends add themselves
        "allgather_coalesced": {"nccl", "mpi", "ucc", "xccl"},
        "reduce": set(),
        "sendrecv anysource": {"nccl", "ucc", "xccl"},
        "cpu barrier": {"nccl", "ucc", "xccl"},
    }
    backend_feature: dict[str, set[str]] = {  # noqa: RUF012  # third-party backends add themselves
        "gpu": {"nccl", "gloo", "ucc"},
        "cuda": {"nccl", "gloo", "ucc"},
        "ddp": {"nccl", "gloo", "ucc"},
        "subgroup": {"nccl", "gloo", "ucc"},
        "plugin": set(),
    }


def device_count() -> int:
    """Return the number of accelerators of this machine, of any kind, without initialising one."""
    import torch

    for kind in ("cuda", "hpu", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            return int(module.device_count())
    return 0


def need_devices(count: int) -> TestSkip:
    """Return the skip for too few devices. Above the table's eight, it has the generic code."""
    message = f"Need at least {count} CUDA device{'s' if count > 1 else ''}"
    return TEST_SKIPS.get(f"multi-gpu-{count}") or TestSkip(TEST_SKIPS["generic"].exit_code, message)


def early_skip(method: object) -> str | None:
    """Return the reason if a check of the method already fails; None if only running it can decide."""
    for check in getattr(method, ATTRIBUTE, ()):
        skip = check()
        if skip is not None:
            return str(skip.message)
    return None


def _checked(check: Check) -> Callable[[Method], Method]:
    """Return a decorator that runs the check when the test is called, and attaches it for earlier evaluation."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            skip = check()
            if skip is None:
                return method(*args, **kwargs)
            return _exit_or_skip(skip, args)

        # Decorators may be stacked. The outermost one then carries the checks of all.
        setattr(wrapper, ATTRIBUTE, (check, *getattr(method, ATTRIBUTE, ())))
        return wrapper  # type: ignore[return-value]

    return decorate


def _exit_or_skip(skip: TestSkip, args: tuple[Any, ...]) -> None:
    owner = args[0] if args else None
    # torch's own decorators ask for this method first: a class may report a skip in another way.
    if (handle := getattr(owner, "_handle_test_skip", None)) is not None:
        handle(skip.message)
    elif isinstance(owner, int) or any(hasattr(owner, name) for name in _STARTS_RANKS):
        sys.exit(skip.exit_code)  # noqa: TID251  # torch's convention for a rank that skips
    # A rank of a world reports to pytest, for which an exit is a failure.
    elif isinstance(owner, unittest.TestCase):
        raise unittest.SkipTest(skip.message)
    else:
        import pytest  # pytest 9.0.0 knows SkipTest in unittest's classes only

        pytest.skip(skip.message)


_STARTS_RANKS = ("__disttest_kind__", "_check_return_codes", "_worker_loop")
"""Names in classes whose main process reads exit codes of ranks: disttest's, and torch's of both kinds."""


def _variable(name: str) -> str | None:
    """Read a variable that runners of torch's suites set."""
    return os.environ.get(name)  # noqa: TID251


def _world_size() -> int | None:
    text = _variable("WORLD_SIZE")
    return int(text) if text and text.isdecimal() else None


def skip_if_no_gpu(method: Method) -> Method:
    """Skip unless there is an accelerator for each rank of ``WORLD_SIZE``."""

    def check() -> TestSkip | None:
        found = device_count()
        if not found:
            return TEST_SKIPS["no_cuda"]
        size = _world_size()
        return need_devices(size) if size is not None and found < size else None

    return _checked(check)(method)


def skip_if_small_worldsize(method: Method) -> Method:
    """Skip below three ranks (``WORLD_SIZE``), except on MPI."""

    def check() -> TestSkip | None:
        size = _world_size()
        small = size is not None and size < _ENOUGH_RANKS and _variable("BACKEND") != "mpi"
        return TEST_SKIPS["small_worldsize"] if small else None

    return _checked(check)(method)


def skip_if_odd_worldsize(method: Method) -> Method:
    """Skip an odd number of ranks (``WORLD_SIZE``), except on MPI."""

    def check() -> TestSkip | None:
        size = _world_size()
        odd = size is not None and size % 2 == 1 and _variable("BACKEND") != "mpi"
        return TEST_SKIPS["odd_worldsize"] if odd else None

    return _checked(check)(method)


def require_n_gpus_for_nccl_backend(n: int, backend: str) -> Callable[[Method], Method]:
    """Skip on NCCL with fewer than ``n`` GPUs; ignore other backends."""
    return _checked(lambda: need_devices(n) if backend == "nccl" and device_count() < n else None)


def nccl_skip_if_lt_x_gpu(backend: str, x: int) -> Callable[[Method], Method]:
    """Skip on NCCL with fewer than ``x`` GPUs. With any other backend CUDA is never touched."""
    return require_n_gpus_for_nccl_backend(x, backend)


def skip_if_lt_x_gpu(x: int, *, allow_cpu: bool = False) -> Callable[[Method], Method]:
    """Skip with fewer than ``x`` accelerators; ``allow_cpu`` accepts a machine without any."""

    def check() -> TestSkip | None:
        found = device_count()
        if found >= x or (allow_cpu and found == 0):
            return None
        return need_devices(x)

    return _checked(check)


def at_least_x_gpu(x: int) -> bool:
    """Return whether the machine has at least ``x`` accelerators."""
    return device_count() >= x


def requires_ddp_rank(device: str) -> bool:
    """Return whether DDP ranks of this device type need one device each."""
    return device in DDP_RANK_DEVICES


def import_transformers_or_skip() -> Callable[[Method], Method]:
    """Skip without ``transformers``. An ImportError of the test itself is not caught."""

    def check() -> TestSkip | None:
        try:
            from transformers import AutoModelForMaskedLM, BertConfig  # noqa: F401
        except ImportError:
            return TEST_SKIPS["importerror"]
        return None

    return _checked(check)


def _on_rocm() -> bool:
    import torch

    return torch.version.hip is not None


def skip_if_rocm(method: Method) -> Method:
    """Skip on ROCm."""
    wrapped = _checked(lambda: TEST_SKIPS["skipIfRocm"] if _on_rocm() else None)(method)
    wrapped.skip_if_rocm = True  # type: ignore[attr-defined]
    return wrapped


skip_if_rocm_multiprocess = skip_if_rocm


def skip_if_win32() -> Callable[[Method], Method]:
    """Skip on Windows."""
    return unittest.skipIf(
        sys.platform == "win32", "This unit test case is not supported on Windows platform"
    )


def requires_world_size(n: int) -> Callable[[Method], Method]:
    """Require ``n`` ranks with a GPU each; the harness reads it with :func:`get_required_world_size`."""

    def decorate(method: Method) -> Method:
        method._required_world_size = n  # type: ignore[attr-defined]
        found = device_count()
        return unittest.skipUnless(found >= n, f"requires {n} GPUs, found {found}")(method)

    return decorate


def get_required_world_size(obj: Any, default: int) -> int:
    """Return the number that the running test of ``obj`` requires with :func:`requires_world_size`, or the default."""
    method = getattr(obj, getattr(obj, "_testMethodName", ""), None)
    return int(getattr(method, "_required_world_size", default))


def _requires_built(probe: str, name: str) -> Callable[[Method], Method]:
    import torch.distributed as dist

    built = dist.is_available() and getattr(dist, probe)()
    return unittest.skipUnless(built, f"c10d was not compiled with the {name} backend")


def requires_gloo() -> Callable[[Method], Method]:
    """Skip if torch was built without gloo."""
    return _requires_built("is_gloo_available", "Gloo")


def requires_nccl() -> Callable[[Method], Method]:
    """Skip if torch was built without NCCL."""
    return _requires_built("is_nccl_available", "NCCL")


def requires_ucc() -> Callable[[Method], Method]:
    """Skip if torch was built without UCC."""
    return _requires_built("is_ucc_available", "UCC")


def requires_mpi() -> Callable[[Method], Method]:
    """Skip if torch was built without MPI."""
    return _requires_built("is_mpi_available", "MPI")


def requires_nccl_version(version: tuple[int, ...], msg: str) -> Callable[[Method], Method]:
    """Skip without NCCL of at least this version; ``msg`` gives the reason."""
    import torch
    import torch.distributed as dist

    if not dist.is_nccl_available():
        return requires_nccl()
    found = torch.cuda.nccl.version()
    wanted = ".".join(map(str, version))
    return unittest.skipIf(
        found < version,
        f"Requires NCCL version greater than or equal to: {wanted}, found: {found}, reason: {msg}",
    )


def requires_accelerator_dist_backend(backends: Iterable[str] | None = None) -> Callable[[Method], Method]:
    """Skip unless one of the backends (by default those of accelerators) is available."""
    import torch.distributed as dist

    names = list(ACCELERATOR_DIST_BACKENDS if backends is None else backends)
    some = any(dist.is_backend_available(name) for name in names)
    return unittest.skipUnless(some, f"No accelerator communication backend available among {names}")
