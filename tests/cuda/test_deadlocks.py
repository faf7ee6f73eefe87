"""Deadlocks over NCCL, where ranks wait for GPUs and GPUs for calls: proven in a second, on emulated GPUs."""

from __future__ import annotations

import pytest
from lab import Ended
from planted import HANGS_ON_DEVICES, TRAPS_ON_DEVICES, Program, run_on_devices, wrong


@pytest.fixture(scope="module", params=["", "1"], ids=["sleeping", "spinning"])
def watched(request, cuda_labs) -> Ended:
    """All of them, where a thread that waits for a device sleeps, and where it spins, as CUDA's do."""
    lab = cuda_labs(gpus=4, EMULATED_CUDA_SPIN=request.param, PLANTED_STRAGGLE_S="2")
    return run_on_devices(lab, (*HANGS_ON_DEVICES, *TRAPS_ON_DEVICES), "--sanitize", "off", limit_s=600)


def test_hangs_are_proven(watched):
    assert wrong(watched.run, HANGS_ON_DEVICES, Program.check_hang) == {}


def test_nothing_is_said_of_what_only_looks_like_one(watched):
    assert wrong(watched.run, TRAPS_ON_DEVICES, Program.check_quiet) == {}
