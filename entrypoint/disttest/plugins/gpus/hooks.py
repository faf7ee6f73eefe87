"""Hooks of the GPUs."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.options.option import Option, of_every_run
from disttest.options.values import SWITCH, path

if TYPE_CHECKING:
    from disttest.options.run import RunOptions
    from disttest.plugins.gpus.gpu_state import GpuState
    from disttest.plugins.gpus.machine import GpuMachine
    from disttest.plugins.gpus.run_gpus import GpuDevices
    from disttest.runtime.rank.rank_test import Rank, RankTest


ALLOW_BUSY_GPUS = of_every_run(
    "allow-busy-gpus", SWITCH, "Take GPUs that processes of others use, too.", default=False
)
LEASE_DIR = of_every_run(
    "lease-dir", path("DIR"), "Folder in which the runs of this host lease GPUs.", plan=True, hidden=True
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Return ``--allow-busy-gpus`` and ``--lease-dir``."""
    return (ALLOW_BUSY_GPUS, LEASE_DIR)


@hookimpl
def disttest_make_devices(options: RunOptions) -> GpuDevices:
    """Return the GPUs of this machine, or its processors if the run needs no GPU."""
    from disttest.plugins.gpus.run_gpus import GpuDevices

    return GpuDevices(options)


@hookimpl
def disttest_detect_machine() -> GpuMachine:
    """Detect this machine and its GPUs."""
    from disttest.plugins.gpus.detect import detect_machine

    return detect_machine()


@hookimpl
def disttest_rank_configure(rank: Rank) -> None:
    """Watch the state of the GPU, if torch is built for CUDA."""
    torch = sys.modules.get("torch")
    on_gpu = rank.spec.shape.device != "cpu" and torch is not None and torch.backends.cuda.is_built()
    if on_gpu and not rank.is_launched:
        # Not imported in ranks on the CPU: its presence loads the facets of CUDA.
        from disttest.plugins.gpus import gpu_state

        gpu_state.start(rank.spec.ranks_on_gpu)


@hookimpl
def disttest_group_made() -> None:
    """Limit this rank to its share of the memory of its GPU."""
    if (state := _state()) is not None:
        state.share_memory()


@hookimpl(wrapper=True, tryfirst=True)
def disttest_rank_test(test: RankTest) -> Generator[None, bool, bool]:
    """Record the memory in use before the test."""
    if (state := _state()) is not None:
        state.begin(test.item.config)
    return (yield)


@hookimpl
def disttest_leaks(shared_fixtures: bool) -> Sequence[str]:
    """Name memory of the GPU that the test has left in use."""
    state = _state()
    return () if state is None else state.leaks(shared_fixtures=shared_fixtures)


def _state() -> GpuState | None:
    """Return the state of this rank's GPU; None in other processes."""
    module = sys.modules.get("disttest.plugins.gpus.gpu_state")
    return None if module is None else module.state
