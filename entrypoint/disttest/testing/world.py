"""The world as a test sees it: the value of the ``world`` fixture."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.distributed


@dataclass(frozen=True, kw_only=True)
class World:
    """One rank's view of the ranks that run the test together. The process group is initialised."""

    rank: int
    """Number of this rank, from 0 to ``size - 1``."""
    size: int
    """Number of ranks."""
    local_rank: int = field(repr=False)
    """Rank among those of this machine; the index of this rank's GPU."""
    backend: str
    """Backend of the default process group: ``gloo``, ``nccl``, …"""
    device_type: str = field(repr=False)
    """``cpu`` or ``cuda``."""
    scratch: Callable[[], Path] = field(repr=False)
    """Function that returns :attr:`tmp_path`."""

    @property
    def tmp_path(self) -> Path:
        """Directory that all ranks of this test share. If nodes share no file system, the test is skipped."""
        return self.scratch()

    @functools.cached_property
    def device(self) -> torch.device:
        """Device of this rank's tensors: its GPU, or the CPU."""
        import torch

        if self.device_type == "cpu":
            return torch.device("cpu")
        # Ranks share GPUs if a world has more ranks than GPUs and the run allows it (`--ranks-per-gpu`).
        return torch.device(self.device_type, self.local_rank % torch.accelerator.device_count())

    @property
    def group(self) -> torch.distributed.ProcessGroup:
        """The default process group."""
        import torch.distributed as dist

        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("the test destroyed the default process group")
        return group

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Print one line in IPython and in property-based tests, which otherwise list all fields of a dataclass."""
        printer.text(repr(self))


@dataclass(frozen=True, kw_only=True)
class _Provider:
    world: Callable[[], World]
    scratch: Callable[[], Path]


_provider: _Provider | None = None


def provide_world(world: Callable[[], World], scratch: Callable[[], Path]) -> None:
    """Set how this process gets its world and the directory that its ranks share. The rank calls it once."""
    global _provider  # one rank per process
    _provider = _Provider(world=world, scratch=scratch)


def _this_process() -> _Provider:
    if _provider is None:
        if "RANK" in os.environ:  # noqa: TID251 - set by a launcher
            raise LookupError(
                "no world here: under a launcher such as torchrun each test makes its own process group; "
                "run tests that use the fixture world without it"
            )
        raise LookupError(
            "no world here: mark the test with @pytest.mark.world_size(N), "
            "so that disttest runs it in N ranks"
        )
    return _provider


def current_world() -> World:
    """Return the world of the test that runs in this process, with its process group initialised.

    ``unittest`` methods use it, because they cannot request the ``world`` fixture.

    Raises:
        LookupError: this process is not a rank of a world.
    """
    return _this_process().world()


def current_scratch() -> Path:
    """Return the directory that the ranks of the running test share. It needs no process group.

    Raises:
        LookupError: this process is not a rank of a world.
    """
    return _this_process().scratch()
