"""Lock files: hashed, in step with pyproject.toml and constraints.txt, and resolvable even where nobody builds them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("cpu", "cuda", "launch", "build")


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return {
        canonicalize_name(one): version
        for one, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    }


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines}


def wanted(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [
        *project["dependencies"],
        *(one for extra in extras for one in project["optional-dependencies"][extra]),
    ]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_hashes(name: str) -> None:
    entries = re.split(
        r"^(?=[\w.-]+==)", (ROOT / "requirements" / f"{name}.lock").read_text(), flags=re.MULTILINE
    )
    for entry in filter(str.strip, entries):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


@pytest.mark.parametrize(("name", "extras"), [("cpu", ["torch"]), ("cuda", ["torch"]), ("launch", [])])
def test_locks_satisfy_the_project(name: str, extras: list[str]) -> None:
    locked = pins(name)
    for requirement in wanted(*extras):
        if name == "launch" and requirement.name == "numpy":
            continue  # the launcher runs no test, see requirements/lock
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in {name}.lock: run `make lock`"
        assert requirement.specifier.contains(version.split("+")[0]), requirement


@pytest.mark.parametrize("name", ["cpu", "cuda", "launch"])
def test_locks_agree_with_what_the_tests_run_with(name: str) -> None:
    known = constraints()
    if name == "cuda":
        del known["torch"]  # tests/cuda runs with it, the other tests with the CPU build
    locked = {one: version.split("+")[0] for one, version in pins(name).items()}
    assert {one: version for one, version in locked.items() if known.get(one, version) != version} == {}


def test_the_launchers_environment_has_no_torch() -> None:
    assert not {"torch", "numpy", "triton"} & set(pins("launch"))


def test_cuda_comes_whole_and_once() -> None:
    locked = pins("cuda")
    assert "+" not in locked["torch"]
    assert pins("cpu")["torch"] == f"{constraints()['torch']}+cpu"
    assert Version(locked["nvidia-nccl-cu13"]) >= Version("2.30"), (
        "ranks cannot share a GPU with an older one"
    )
    assert {"nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "triton"} <= set(locked)


def test_the_cuda_target_resolves(tmp_path: Path) -> None:
    """Every wheel of the lock is there, for the image's platform and with one of the locked hashes.

    Only metadata is fetched: the wheels are 2.8 GB.
    """
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert uv, "uv is missing"
    done = subprocess.run(
        [
            uv, "pip", "install", "--dry-run", "--require-hashes", "--no-deps", "--only-binary", ":all:",
            "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28",
            "--target", tmp_path, "--requirement", ROOT / "requirements" / "cuda.lock",
        ],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Would install {len(pins('cuda'))} packages" in done.stderr
