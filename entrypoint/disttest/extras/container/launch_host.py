"""The host of a launch, passed as an argument so that tests can replace it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import disttest
from disttest.extras.container.gpus import HostGpu
from disttest.options.environment import environment
from disttest.plugins.gpus.detect import detect_machine
from disttest.plugins.gpus.machine import Gpu
from disttest.results.journal import run_clock


@dataclass(frozen=True, kw_only=True)
class Host:
    """The properties of the host that a launch needs."""

    environ: Mapping[str, str]
    uid: int
    home: str
    version: str
    """Version of disttest, which is the tag of the released image."""
    find_gpus: Callable[[], tuple[HostGpu, ...]]
    now: Callable[[], float]
    """Seconds since the epoch; never decreases."""


def this_host() -> Host:
    """Return the present host."""
    return Host(
        environ=environment(),
        uid=os.getuid(),
        home=str(Path.home()),
        version=disttest.__version__,
        find_gpus=lambda: tuple(gpu for found in detect_machine().gpus for gpu in usable(found)),
        now=run_clock(),
    )


def usable(gpu: Gpu) -> tuple[HostGpu, ...]:
    """Return the devices for a container: the GPU, its slices in MIG mode, none if it is broken."""
    if gpu.fault:
        return ()
    if gpu.mig_enabled:
        return tuple(HostGpu(index=gpu.index, uuid=part.uuid) for part in gpu.slices)
    return (HostGpu(index=gpu.index, uuid=gpu.uuid),)
