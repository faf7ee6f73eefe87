"""The machine's own GPUs in the place of emulated ones: ``pytest tests/cuda --real-gpus``, on a machine that has some.

A test that needs more GPUs than there are, or a fault that only emulation can cause, is skipped and says so.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest
from lab import Lab


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealGpus:
    """What tests ask of ``CudaEnvironment``, of this interpreter and real GPUs."""

    uuids: tuple[str, ...]
    python: Path = Path(sys.executable)

    @property
    def torch(self) -> Path:
        """Only its emulated libraries are compared with it."""
        _only_emulated("the libraries of the emulated device")

    def environ(self, gpus: int = 2, *, state: Path | None = None, **extra: str) -> dict[str, str]:
        """The variables of a process that sees this many GPUs."""
        if not gpus:
            _only_emulated("a machine without a driver")
        _refuse_faults(extra)
        if gpus > len(self.uuids):
            pytest.skip(f"needs {gpus} GPUs, this machine has {len(self.uuids)}")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DISTTEST_", "PYTEST_"))}
        return clean | {"CUDA_VISIBLE_DEVICES": ",".join(self.uuids[:gpus]), "COLUMNS": "200"} | extra

    def lab(self, folder: Path, gpus: int = 2, **extra: str) -> Lab:
        """A laboratory that runs disttest and pytest of this interpreter in a folder, in the host's lease directory."""
        return _RealLab(folder, python=str(self.python), environ=self.environ(gpus, **extra))

    def execute(
        self,
        *arguments: str,
        gpus: int = 2,
        limit_s: float = 120,
        state: Path | None = None,
        **environ: str,
    ) -> subprocess.CompletedProcess[str]:
        """Programs that are given to the interpreter itself look at how the emulated device behaves."""
        _only_emulated("the emulated device itself")


class _RealLab(Lab):
    """A laboratory in which faults cannot be injected."""

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        _refuse_faults(environ)
        return super().start(*arguments, **environ)


def real_gpus() -> RealGpus:
    """Those that the driver lists; where there is none the test fails, since it was asked for."""
    listed = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    return RealGpus(uuids=tuple(listed.stdout.split()))


def _refuse_faults(environ: Mapping[str, str]) -> None:
    if any(name.startswith("EMULATED_") for name in environ):
        _only_emulated("a fault that only emulation can cause")


def _only_emulated(what: str) -> NoReturn:
    pytest.skip(f"about {what}: not on real GPUs")
