"""A barrier and a lock based on files, for ranks without a process group."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from disttest.clock import monotonic, sleep


def _root() -> Path:
    return Path(os.environ["TEMP_DIR"])  # noqa: TID251  # set by initialize_temp_directories


@contextlib.contextmanager
def file_lock() -> Iterator[None]:
    """Hold a lock among all processes that share ``TEMP_DIR``."""
    with (_root() / "lockfile").open("w") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)


class Barrier:
    """A barrier that counts arrivals in files named after processes."""

    # Call ``init`` in the main process before each test.

    barrier_id: ClassVar[int] = 0

    @classmethod
    def init(cls) -> None:
        """Discard earlier arrivals."""
        cls.barrier_id = 0
        for file in (_root() / "barrier").iterdir():
            file.unlink()

    @classmethod
    def sync(cls, wait_for: int | None = None, timeout: float = 10) -> None:
        """Wait until a number of processes (by default all of the group) have reached this barrier.

        Raises:
            RuntimeError: they have not arrived within the time limit.
        """
        if wait_for is None:
            import torch.distributed as dist

            wait_for = dist.get_world_size()
        cls.barrier_id += 1
        with file_lock():
            (_root() / "barrier" / str(os.getpid())).write_text(str(cls.barrier_id))
        deadline = monotonic() + timeout
        while cls._arrived() != wait_for:
            if monotonic() > deadline:
                raise RuntimeError("barrier timeout")
            sleep(0.01)

    @classmethod
    def _arrived(cls) -> int:
        with file_lock():
            counts = [int(file.read_text()) for file in (_root() / "barrier").iterdir()]
        # A fast process may have reached the next barrier already, so a higher number counts, too.
        return sum(count >= cls.barrier_id for count in counts)
