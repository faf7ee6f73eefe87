"""Fixtures of the tests on torch's CUDA build: its environment, and laboratories in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cuda_environment import CudaEnvironment, NoCudaEnvironment, cuda_environment
from lab import Lab
from real_gpus import RealGpus, real_gpus
from results_files import check_results_below


@pytest.fixture(scope="session")
def cuda(request: pytest.FixtureRequest) -> CudaEnvironment | RealGpus:
    """The environment, made if it is not there. Where that fails so does the test: none is skipped."""
    if request.config.getoption("--real-gpus"):
        return real_gpus()
    try:
        return cuda_environment()
    except NoCudaEnvironment as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def cuda_lab(cuda: CudaEnvironment | RealGpus, tmp_path: Path) -> Iterator[Lab]:
    """A laboratory with two emulated GPUs."""
    yield cuda.lab(tmp_path, gpus=2)
    check_results_below(tmp_path)


@pytest.fixture
def one_gpu(cuda: CudaEnvironment | RealGpus, tmp_path: Path) -> Iterator[Lab]:
    """A laboratory with one GPU, as most machines have it that are lent for a check."""
    yield cuda.lab(tmp_path, gpus=1)
    check_results_below(tmp_path)


@pytest.fixture(scope="module")
def cuda_labs(
    cuda: CudaEnvironment | RealGpus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Lab]]:
    """Make a laboratory that several tests of a module share: ``cuda_labs(gpus=4)``."""
    made = []

    def make(gpus: int = 2, **environ: str) -> Lab:
        made.append(tmp_path_factory.mktemp("lab"))
        return cuda.lab(made[-1], gpus, **environ)

    yield make
    for folder in made:
        check_results_below(folder)
