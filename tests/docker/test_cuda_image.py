"""The image that is released: torch's CUDA build in it, with the emulated device mounted in the place of a driver.

Built in a container from the locked wheels (a download of 2.8 GB, an image of 5.4 GB), started as ``docker run`` would.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cuda_environment import cuda_environment
from engine import Engine, build_target

from disttest.emulated_device import emulated_environment


@pytest.fixture(scope="module")
def cuda_image(engine: Engine) -> str:
    return build_target(engine, "cuda")


@pytest.fixture(scope="module")
def with_gpus() -> list[str]:
    """Options of ``docker run`` with which the container sees two emulated GPUs."""
    libraries = cuda_environment().libraries
    variables = emulated_environment(libraries, 2, {})
    return [
        f"--volume={libraries}:{libraries}:ro",
        *(f"--env={name}={value}" for name, value in variables.items()),
    ]


def test_a_suite_runs_over_nccl(
    engine: Engine, cuda_image: str, with_gpus: list[str], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    mounts = ("--network=none", "--shm-size=1g", f"--volume={results}:/workspace/results")

    done = engine.docker(
        "run",
        "--rm",
        *mounts,
        *with_gpus,
        cuda_image,
        "smoke",
        "--world-sizes=1,2",
        check=False,
        timeout_s=300,
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    run = json.loads((results / "results.json").read_text())
    shapes = {(test["test"]["world"]["size"], test["test"]["world"]["backend"]) for test in run["tests"]}
    assert {(1, "nccl"), (2, "nccl")} <= shapes
    assert run["hardware"]["gpus"] == ["Emulated GPU (host memory)"] * 2


def test_without_a_driver_it_runs_on_the_cpu(engine: Engine, cuda_image: str) -> None:
    done = engine.docker(
        "run", "--rm", "--network=none", cuda_image, "smoke", "--world-sizes=2", check=False, timeout_s=300
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "2xgloo" in done.stdout
