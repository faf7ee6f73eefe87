"""The image that is released: torch's CUDA build in it, with the emulated device mounted in the place of a driver.

Built in a container from the locked wheels (a download of 2.8 GB, an image of 5.4 GB), started as ``docker run`` would.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from cuda_environment import cuda_environment
from documents import blocks, commands
from engine import Engine, build, build_target
from typed import said

from disttest.extras.emulated_gpus.gpu_environment import emulated_environment

pytestmark = pytest.mark.thorough(
    "it takes 6 GB; the cpu target has the same steps, and tests/cuda runs the same wheels over NCCL"
)


@pytest.fixture(scope="module")
def cuda_image(engine: Engine) -> str:
    return build_target(engine, "cuda")


@pytest.fixture(scope="module")
def libraries() -> Path:
    """The emulated device's."""
    return cuda_environment().libraries


@pytest.fixture(scope="module")
def with_gpus(libraries: Path) -> list[str]:
    """Options of ``docker run`` with which the container sees two emulated GPUs."""
    variables = emulated_environment(libraries, 2, {})
    return [
        f"--volume={libraries}:{libraries}:ro",
        *(f"--env={name}={value}" for name, value in variables.items()),
    ]


@pytest.fixture
def page_command(engine: Engine, cuda_image: str, libraries: Path, tmp_path: Path) -> str:
    """What the page has typed, and an image of the name that stands there, whose driver are libraries of the host.

    The engine puts these in place for who asks for GPUs, and for nobody else. Of the suite one file is enough. On a
    machine whose root may not raise the limit on locked memory, no container may.
    """
    ((typed, _),) = commands(blocks("docs/image.md", "Run it by hand"))
    if subprocess.run(["bash", "-c", "ulimit -l unlimited"], check=False, capture_output=True).returncode:
        typed = typed.replace(" --ulimit memlock=-1", "")
    name = next(word for word in shlex.split(typed) if word.startswith("ghcr.io/"))
    variables = emulated_environment(libraries, 2, {}) | {"PYTEST_ADDOPTS": "-k test_buffers"}
    lines = [f"FROM {cuda_image}", *(f"ENV {key}={shlex.quote(value)}" for key, value in variables.items())]
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    build(engine, tmp_path, tag=name)
    return typed


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


def test_the_command_of_the_page(engine: Engine, page_command: str, tmp_path: Path) -> None:
    """As it stands there: without its ``--gpus all`` there would be no GPUs."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    said(page_command, workspace, engine.environment())

    run = json.loads((workspace / "results" / "results.json").read_text())
    assert {test["test"]["world"]["backend"] for test in run["tests"]} == {"nccl"}
    assert run["hardware"]["gpus"] == ["Emulated GPU (host memory)"] * 2
