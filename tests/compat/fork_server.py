"""A pytest plugin for torch's own harness: its ranks come from a fork server that has imported the suite once.

torch starts each rank as a new interpreter; at 3 or 4 ranks for each of hundreds of tests, that is hours of
importing torch. Here the processes come from a server that did so before. What is pickled for them, started, joined
and judged, and how, stays torch's own code; ``pytest tests/compat --full --spawn`` leaves this plugin away.
"""

from __future__ import annotations

import os
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing
from torch.testing._internal.common_distributed import MultiProcessTestCase


def pytest_configure(config: pytest.Config) -> None:
    """Start ranks from the server from now on; it imports the file that is to be collected."""
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([Path(config.args[0]).stem])
    with pytest.MonkeyPatch.context() as patch:
        # Importing the suite asks whether there are GPUs; a server that asked CUDA itself could fork no user of it.
        patch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        forkserver.ensure_running()

    def process(**given: Any) -> BaseProcess:
        # The server keeps the environment of its own start; a new interpreter would get the one of now.
        return context.Process(target=_run, args=(dict(os.environ), given), name=given["name"])

    def start(case: MultiProcessTestCase) -> None:
        case._start_processes(process)

    MultiProcessTestCase._spawn_processes = start


def _run(environment: dict[str, str], given: dict[str, Any]) -> None:
    """In the rank: what torch's harness wanted to be run."""
    os.environ.clear()
    os.environ.update(environment)
    given["target"](*given["args"], **given["kwargs"])
