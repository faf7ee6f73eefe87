"""Small helpers under the names that test authors know from torch."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import tenacity

from disttest.testing.skips import device_count

Method = TypeVar("Method", bound=Callable[..., Any])

FILE_SCHEMA = "file://"
# torch's variable
TIMEOUT_DEFAULT = int(os.environ.get("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "300"))  # noqa: TID251
TIMEOUT_OVERRIDE = {"test_ddp_uneven_inputs": 400, "test_DistributedDataParallel": 500}
_STORE_ATTEMPTS = 10


def get_timeout(test_id: str) -> int:
    """Return the time limit of a test in seconds, by the last part of its id."""
    return TIMEOUT_OVERRIDE.get(test_id.rpartition(".")[2], TIMEOUT_DEFAULT)


def accelerator_type() -> str:
    """Return the type of this machine's accelerator, or ``cpu``. The type that torch was built for does not count."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def create_tcp_store(
    addr: str = "localhost",
    world_size: int = 1,
    is_master: bool = True,
    timeout: timedelta = timedelta(minutes=5),
    wait_for_workers: bool = True,
    jit_class: bool = False,
    use_libuv: bool = True,
) -> Any:
    """Create a ``TCPStore`` on a free port. If the port is taken meanwhile, another one is tried, ten times.

    Raises:
        RuntimeError: no port was available.
    """
    import torch
    import torch.distributed as dist

    def create() -> Any:
        port = find_free_port()
        if jit_class:
            milliseconds = int(timeout / timedelta(milliseconds=1))
            return torch.classes.dist_c10d.TCPStore(addr, port, world_size, is_master, milliseconds)
        return dist.TCPStore(  # type: ignore[attr-defined]
            addr,
            port,
            world_size,
            is_master,
            timeout=timeout,
            wait_for_workers=wait_for_workers,
            use_libuv=use_libuv,
        )

    try:
        return _store_retries()(create)
    except tenacity.RetryError as error:
        cause = error.last_attempt.exception()
        raise RuntimeError(f"Failing after {_STORE_ATTEMPTS} retries with error: {cause}") from cause


def _store_retries() -> tenacity.Retrying:
    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_STORE_ATTEMPTS),
        wait=tenacity.wait_random(0, 1),
        # Between the probe of a port and the server on it, another process may take the port.
        retry=tenacity.retry_if_exception_message(match=r"(?s).*Address already in use"),
    )


def find_free_port() -> int:
    """Return a port of localhost that is free at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def create_device(interface: str | None = None, lazy_init: bool = False) -> Any:
    """Create a gloo device on an interface, by default the loopback."""
    import torch.distributed as dist

    make = dist.ProcessGroupGloo.create_device
    if interface is None or sys.platform == "win32":
        return make(hostname="127.0.0.1", lazy_init=lazy_init)
    return make(interface=interface, lazy_init=lazy_init)


@contextlib.contextmanager
def captured_output() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Replace Python's standard output and error by two buffers. Output of C code is not captured."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def simple_sparse_reduce_tests(
    rank: int, world_size: int, num_inputs: int = 1
) -> list[tuple[list[Any], list[Any]]]:
    """Six pairs of inputs of this rank and expected sums: 1 to 3 sparse dimensions, then 1 to 3 dense ones."""
    # The tensor of virtual rank v (of ``num_inputs * world_size``) holds ones at 0..v of its first sparse dimension
    # and at 0 of the others, so that any two overlap.
    virtual = num_inputs * world_size

    def pair(sparse_dims: int, dense_dims: int) -> tuple[list[Any], list[Any]]:
        parts = [_sparse_ones(v, virtual, sparse_dims, dense_dims) for v in range(virtual)]
        total = functools.reduce(lambda left, right: left + right, parts)
        return parts[num_inputs * rank : num_inputs * (rank + 1)], [total] * num_inputs

    return [pair(sparse, dense) for sparse, dense in ((1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3))]


def _sparse_ones(virtual_rank: int, size: int, sparse_dims: int, dense_dims: int) -> Any:
    import torch

    count = virtual_rank + 1
    indices = torch.zeros((sparse_dims, count), dtype=torch.int64)
    indices[0] = torch.arange(count)
    values = torch.ones([count] + [2] * dense_dims)
    return torch.sparse_coo_tensor(
        indices, values, [size] * sparse_dims + [2] * dense_dims, check_invariants=True
    )


def init_multigpu_helper(world_size: int, backend: str) -> dict[int, list[int]]:
    """Map each rank to the indices of its devices: one each, or an equal share of fewer devices."""
    del backend
    found = device_count()
    share = 1 if world_size <= found else found // world_size
    return {rank: list(range(found))[rank * share : (rank + 1) * share] for rank in range(world_size)}


_temporary: tempfile.TemporaryDirectory[str] | None = None


def initialize_temp_directories(init_method: str | None = None) -> None:
    """Create the scratch folders of a test and export their paths."""
    # Call it before the ranks start, which inherit them.
    global _temporary
    # A global keeps the object alive: its finalizer deletes the folder.
    _temporary = tempfile.TemporaryDirectory()
    root = Path(_temporary.name)
    for name in ("barrier", "test_dir", "init_dir"):
        (root / name).mkdir()
    shared = f"{FILE_SCHEMA}{root / 'init_dir' / 'shared_init_file'}"
    os.environ["TEMP_DIR"] = str(root)  # noqa: TID251  # read by the ranks
    os.environ["INIT_METHOD"] = shared if init_method is None else init_method  # noqa: TID251


def cleanup_temp_dir() -> None:
    """Delete the scratch folders, if there are any."""
    if _temporary is not None:
        _temporary.cleanup()


@functools.cache
def has_efa() -> bool:
    """Return whether libfabric finds an EFA interface; it is asked once."""
    try:
        probe = subprocess.run(["fi_info", "-p", "efa", "-t", "FI_EP_RDM"], check=False, capture_output=True)
    except FileNotFoundError:
        return False
    return probe.returncode == 0


def tp_transports() -> list[str] | None:
    """Return TensorPipe's transports: without InfiniBand where EFA is present, otherwise None for its defaults."""
    # https://github.com/pytorch/pytorch/issues/73885
    return ["shm", "uv"] if has_efa() else None


def with_nccl_blocking_wait(method: Method) -> Method:
    """Run a test with ``TORCH_NCCL_BLOCKING_WAIT=1`` and without async error handling; restore both."""

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _environment(TORCH_NCCL_BLOCKING_WAIT="1", TORCH_NCCL_ASYNC_ERROR_HANDLING=None):
            return method(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def with_dist_debug_levels(levels: list[str]) -> Callable[[Method], Method]:
    """Run a test once at each level of ``TORCH_DISTRIBUTED_DEBUG``, with a barrier after each; restore the level."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            import torch.distributed as dist

            result = None
            try:
                for level in levels:
                    with _environment(TORCH_DISTRIBUTED_DEBUG=level):
                        dist.set_debug_level_from_env()  # type: ignore[attr-defined]
                        result = method(*args, **kwargs)
                        dist.barrier()
            finally:
                # Outside of `_environment`, so that the variable has its earlier value again. A skip or a
                # failure leaves the loop, too.
                dist.set_debug_level_from_env()  # type: ignore[attr-defined]
            return result

        return wrapper  # type: ignore[return-value]

    return decorate


@contextlib.contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}  # noqa: TID251
    _set_environment(values)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)  # noqa: TID251
        else:
            os.environ[name] = value  # noqa: TID251


def verify_ddp_error_logged(model_DDP: Any, err_substr: str) -> None:  # noqa: N803  # torch's name
    """Fail unless DDP has logged this error. A C++ trace at the end of the text is ignored."""
    logged = model_DDP._get_ddp_logging_data()
    for key in ("iteration", "has_error", "error"):
        if key not in logged:
            raise AssertionError(f"Expected {key!r} in ddp_logging_data")
    # torch appends the C++ trace below this line if TORCH_SHOW_CPP_STACKTRACES is set.
    expected = err_substr.split("\nException raised from ", 1)[0]
    if expected not in logged["error"]:
        raise AssertionError(f"Did not find expected {expected} in ddp logging data error: {logged['error']}")
