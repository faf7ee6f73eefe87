"""A run on emulated GPUs: its processes see them, and its reports name them as emulated."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from disttest.cli.words import warn
from disttest.extras.emulated_gpus.build import build_libraries, default_cache
from disttest.extras.emulated_gpus.gpu_environment import emulated_environment
from disttest.options.environment import add_to_environment, environment


@contextmanager
def emulating(gpus: int) -> Iterator[Mapping[str, str]]:
    """Let the children of this process see emulated GPUs while the context lasts.

    Yields:
        The options that the run needs, by field.

    Raises:
        UsageError: torch's CUDA build or a compiler is missing, or the compiler fails.
    """
    environ = environment()
    libraries = build_libraries(default_cache(environ), tell=warn)
    # The GPUs of two such runs share names but are different: each run has its own state and leases.
    with tempfile.TemporaryDirectory(prefix="disttest-emulated-gpus-") as name:
        state = Path(name)
        add_to_environment(emulated_environment(libraries, gpus, environ, state=state))
        warn(f"{gpus} emulated GPUs: no test ran on a real GPU, and no time is that of a GPU")
        yield {"device": "cuda", "lease_dir": str(state / "leases")}
