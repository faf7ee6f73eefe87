"""The bundled suites on emulated GPUs: over NCCL, what they say of the backend is what its real process group does."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_environment import CudaEnvironment

FOUR = pytest.mark.thorough("two GPUs show the backend; smoke runs on four")
LIMIT_S = 400
"""Alone on two cores the slowest needs less than a third."""


def passed(cuda: CudaEnvironment, folder: Path, *arguments: str) -> int:
    """How many tests of a run on four GPUs pass, where all others say what is lacking."""
    ended = cuda.lab(folder, gpus=4).run("run", *arguments, limit_s=LIMIT_S)
    outcomes = [test.final.outcome.value for test in ended.run.tests]
    assert ended.exit_code == 0, ended.output
    assert set(outcomes) <= {"passed", "skipped"}
    return outcomes.count("passed")


@pytest.mark.parametrize(
    ("suite", "sizes", "at_least"),
    [
        ("smoke", "1,2,4", 18),
        *(
            pytest.param(*each, marks=FOUR)
            for each in (("collectives", "4", 300), ("ddp", "4", 265), ("fsdp", "4", 90))
        ),
        ("collectives", "2", 290),
        ("ddp", "2", 250),
        ("fsdp", "2", 85),
    ],
)
def test_every_test_over_nccl_passes_or_says_what_is_lacking(cuda, tmp_path, suite, sizes, at_least):
    assert passed(cuda, tmp_path, suite, "--world-sizes", sizes, "--backend", "nccl") >= at_least


def test_remote_calls_move_tensors_between_gpus(cuda, tmp_path):
    """What these suites do with GPUs; the rest of them computes on the CPU, whatever the machine has."""
    assert passed(cuda, tmp_path, "rpc", "dist_autograd", "--", "-k", "test_gpu") == 11


def test_compiled_training_is_computed_on_the_cpu(cuda, tmp_path):
    assert passed(cuda, tmp_path, "dynamo", "--world-sizes", "2", "--", "-k", "fsdp") == 13
