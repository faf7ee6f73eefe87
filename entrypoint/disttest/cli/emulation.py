"""``--device emulated-cuda:N`` (experimental): the run's processes see emulated GPUs, and the reports name them so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from disttest.cli.words import warn
from disttest.options.environment import add_to_environment, environment
from disttest.options.values import emulated_gpus

_FOLDER = ".emulated-gpus"


class Emulation:
    """The emulated GPUs of one run; none, unless they were asked for."""

    def __init__(self, device: str) -> None:
        self.gpus = emulated_gpus(device)

    def start(self, flags: dict[str, Any]) -> dict[str, Any]:
        """Let this process's children see the GPUs, and give the flags with which the run goes on.

        Raises:
            UsageError: torch's CUDA build or a compiler is missing, or the compiler fails.
        """
        if not self.gpus:
            return flags
        from disttest.emulated_device import build_libraries, default_cache, emulated_environment

        environ = environment()
        libraries = build_libraries(default_cache(environ), tell=warn)
        add_to_environment(emulated_environment(libraries, self.gpus, environ))
        warn(f"{self.gpus} emulated GPUs: nothing that passes here was tested on a GPU, no time is a GPU's")
        return flags | {"device": "cuda"}

    def keep_in(self, results: Path, flags: dict[str, Any]) -> dict[str, Any]:
        """Put what the GPUs' users share into the results: another run's GPUs have the same names."""
        if not self.gpus:
            return flags
        folder = results.resolve() / _FOLDER
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        folder.mkdir()
        add_to_environment({"EMULATED_CUDA_STATE": str(folder)})
        return flags | {"lease_dir": str(folder / "leases")}

    def end(self, results: Path) -> None:
        """Remove it again."""
        if self.gpus:
            shutil.rmtree(results / _FOLDER, ignore_errors=True)
