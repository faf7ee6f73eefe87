"""Hooks of emulated GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.cli.run_request import RunRequest

FORM = "emulated-cuda:N"


@hookimpl
def disttest_devices() -> Mapping[str, Callable[[str], object]]:
    """Add ``emulated-cuda:N`` to the values of ``--device``."""
    from disttest.extras.emulated_gpus.gpu_environment import emulated_gpus

    return {FORM: emulated_gpus}


@hookimpl
def disttest_around_run(request: RunRequest) -> AbstractContextManager[Mapping[str, str]] | None:
    """Give the processes of the run their emulated GPUs."""
    from disttest.extras.emulated_gpus.gpu_environment import emulated_gpus

    gpus = emulated_gpus(request.options.device)
    if not gpus:
        return None
    from disttest.extras.emulated_gpus.gpu_environment import emulating

    return emulating(gpus)
