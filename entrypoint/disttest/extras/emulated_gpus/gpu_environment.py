"""Emulated GPUs in the environment of a run's processes. Its reports name them as emulated."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from disttest.errors import UsageError

MOST_GPUS = 16
# Preloaded, not found by path: torch's wheels have an RPATH, which takes precedence over LD_LIBRARY_PATH (ld.so(8)).
# docs/decisions/0035-emulate-below-torch.md
PRELOADED = ("libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2")
"""Libraries that replace torch's: a library that is loaded already under a name serves all requests for it."""


def emulated_environment(
    libraries: Path, gpus: int, environ: Mapping[str, str], *, state: Path | None = None
) -> dict[str, str]:
    """Return the variables with which processes see this many emulated GPUs.

    Args:
        libraries: folder from :func:`disttest.extras.emulated_gpus.build_libraries`.
        gpus: number of GPUs, from 1.
        environ: environment that the variables are added to.
        state: empty folder in which the processes publish their use of devices for NVML, in one small file. Without it
            each process counts a device's memory separately, and NVML reports no process.
    """
    # Before the user's own: the first library with a symbol wins (ld.so(8)).
    preload = [*(str(libraries / name) for name in PRELOADED), *_parts(environ, "LD_PRELOAD")]
    # The folder has the metadata of an entry point `torch.backends`, which torch loads at its import.
    python_path = [str(libraries / "python"), *_parts(environ, "PYTHONPATH")]
    return {
        "LD_PRELOAD": ":".join(preload),
        "PYTHONPATH": os.pathsep.join(python_path),
        "EMULATED_CUDA_DEVICES": str(gpus),
        "EMULATED_CUDA_STATE": str(state or ""),
        "DISTTEST_PROBE": json.dumps({"library": str(libraries / "libnvidia-ml.so.1")}),
    }


def emulated_gpus(device: str) -> int:
    """Number of emulated GPUs in a value of ``--device``; 0 for other devices.

    Raises:
        UsageError: the number is missing or out of range.
    """
    name, _, count = device.partition(":")
    if name != "emulated-cuda":
        return 0
    if not re.fullmatch(r"[0-9]+", count) or not 1 <= int(count) <= MOST_GPUS:
        raise UsageError(f"{device!r} is not emulated-cuda:N with N from 1 to {MOST_GPUS}")
    return int(count)


def _parts(environ: Mapping[str, str], name: str) -> list[str]:
    return [part for part in environ.get(name, "").split(":") if part]


@contextmanager
def emulating(gpus: int) -> Iterator[Mapping[str, str]]:
    """Let the children of this process see emulated GPUs while the context lasts.

    Yields:
        The options that the run needs, by field.

    Raises:
        UsageError: torch's CUDA build or a compiler is missing, or the compiler fails.
    """
    from disttest.cli.words import warn
    from disttest.extras.emulated_gpus.build import build_libraries, default_cache
    from disttest.options.environment import add_to_environment, environment

    environ = environment()
    libraries = build_libraries(default_cache(environ), tell=warn)
    # The GPUs of two such runs share names but are different: each run has its own state and leases.
    with tempfile.TemporaryDirectory(prefix="disttest-emulated-gpus-") as name:
        state = Path(name)
        add_to_environment(emulated_environment(libraries, gpus, environ, state=state))
        warn(f"{gpus} emulated GPUs: no test ran on a real GPU, and no time is that of a GPU")
        yield {"device": "cuda", "lease_dir": str(state / "leases")}
