"""Hooks of the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.options.run import RunOptions
    from disttest.plugins.gpus.machine import GpuMachine
    from disttest.plugins.gpus.run_gpus import GpuDevices


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
