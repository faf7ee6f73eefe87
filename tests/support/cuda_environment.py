"""The environment of tests/cuda: torch's CUDA build, this checkout's disttest, and emulated GPUs.

Three layers, each made when it is missing and then kept:

- the wheels of requirements/cuda.lock in a venv of the user's cache (2.8 GB to download, 4.8 GB on disk);
- ``.venv-cuda`` of this checkout: disttest itself, editable, and what only tests import;
- the libraries of the emulated device, in the same cache (40 s of a compiler).

``python tests/support/cuda_environment.py`` makes all three.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import Lab

from disttest.extras.emulated_gpus.build import default_cache
from disttest.extras.emulated_gpus.gpu_environment import emulated_environment

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "cuda.lock"
OWN = ROOT / ".venv-cuda"
CACHE = default_cache(os.environ)
TEST_PACKAGES = ("expecttest", "hypothesis", "sortedcontainers")
"""What torch's own test classes import beside torch."""
FOREIGN = ("DISTTEST_", "PYTEST_", "CUDA_", "NCCL_", "TORCH_NCCL_", "EMULATED_")
"""Variables of ours that are not the laboratory's."""
HOW = f"To make it by hand, with the network: {sys.executable} {Path(__file__).relative_to(ROOT)}"


class NoCudaEnvironment(Exception):
    """It could not be made; the message says what to run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CudaEnvironment:
    """An interpreter with torch's CUDA build, and the emulated GPUs that it can be shown."""

    python: Path
    libraries: Path

    @property
    def torch(self) -> Path:
        """The folder of the installed torch."""
        return _site(CACHE / f"cuda-{_digest()}") / "torch"

    def environ(self, gpus: int = 2, *, state: Path | None = None, **extra: str) -> dict[str, str]:
        """The variables of a process that sees this many GPUs; 0: the CUDA build on a machine without a driver.

        Processes with one `state` folder see in NVML what they hold, and share the memory of the GPUs.
        """
        clean = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        # The lab's own PYTHONPATH is that of another interpreter.
        base = clean | {"PYTHONPATH": "", "COLUMNS": "200"}
        seen = emulated_environment(self.libraries, gpus, base, state=state) if gpus else {}
        return base | seen | extra

    def lab(self, folder: Path, gpus: int = 2, **extra: str) -> Lab:
        """A laboratory that runs disttest and pytest of this environment in a folder.

        Its GPUs are its own: leases and quarantines of other emulated GPUs, which have the same names, are not theirs.
        """
        state = folder / ".emulated-gpus"
        state.mkdir(exist_ok=True)
        own = {"DISTTEST_LEASE_DIR": str(folder / ".leases")}
        return Lab(folder, python=str(self.python), environ=self.environ(gpus, state=state, **own | extra))

    def execute(
        self,
        *arguments: str,
        gpus: int = 2,
        limit_s: float = 120,
        state: Path | None = None,
        **environ: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run the interpreter itself: a script, or ``-c`` and a program."""
        return subprocess.run(
            [str(self.python), *arguments],
            env=self.environ(gpus, state=state, **environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )


def cuda_environment() -> CudaEnvironment:
    """All three layers; those that are missing are made.

    Raises:
        NoCudaEnvironment: there is no network, or no compiler.
    """
    python = _own_layer(_wheels())
    ended = subprocess.run(
        [str(python), "-m", "disttest.extras.emulated_gpus"], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise NoCudaEnvironment(f"the emulated device could not be built:\n{ended.stderr}\n{HOW}")
    return CudaEnvironment(python=python, libraries=Path(ended.stdout.strip()))


def _wheels() -> Path:
    """The venv of the locked wheels."""
    digest = _digest()
    folder = CACHE / f"cuda-{digest}"
    with _alone(folder):
        if not _is_whole(folder, digest):
            _remove(folder)
            _call(sys.executable, "-m", "venv", "--without-pip", str(folder))
            # uv takes a third of pip's processor time for these 5 GB. --no-cache: it would keep them once more.
            uv = (sys.executable, "-m", "uv", "pip", "install", "--no-cache", "--python", _python(folder))
            _call(*uv, "--require-hashes", "--no-deps", "-r", str(LOCK))
            _mark(folder, digest)
    return folder


def _digest() -> str:
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]


def _own_layer(wheels: Path) -> Path:
    """The interpreter of this checkout's own venv on top of the wheels."""
    made_of = hashlib.sha256(
        str(wheels).encode() + (ROOT / "pyproject.toml").read_bytes() + Path(__file__).read_bytes()
    ).hexdigest()
    with _alone(OWN):
        if not _is_whole(OWN, made_of):
            _remove(OWN)
            _call(_python(wheels), "-m", "venv", str(OWN))
            (_site(OWN) / "_wheels.pth").write_text(f"{_site(wheels)}\n")
            constraints = ("--constraint", str(ROOT / "constraints.txt"))
            pip = (_python(OWN), "-m", "pip", "install", "--quiet", "--no-deps")
            _call(*pip, *constraints, *TEST_PACKAGES)
            _call(*pip, "--editable", str(ROOT))
            _mark(OWN, made_of)
    return Path(_python(OWN))


def _python(venv: Path) -> str:
    return str(venv / "bin" / "python")


def _site(venv: Path) -> Path:
    (site,) = venv.glob("lib/python3*/site-packages")
    return site


def _is_whole(venv: Path, made_of: str) -> bool:
    stamp = _stamp(venv)
    return venv.is_dir() and stamp.is_file() and stamp.read_text() == made_of


def _stamp(venv: Path) -> Path:
    return venv.parent / f".{venv.name}.ready"


def _mark(venv: Path, made_of: str) -> None:
    """Last of all, so that an installation that was killed is never taken for a whole one."""
    _stamp(venv).write_text(made_of)


def _remove(venv: Path) -> None:
    _stamp(venv).unlink(missing_ok=True)
    if venv.exists():
        shutil.rmtree(venv)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _call(*command: str) -> None:
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        raise NoCudaEnvironment(
            f"torch's CUDA build could not be installed for tests/cuda:\n{ended.stdout[-3000:]}\n"
            f"{HOW}\nor leave these tests out, and know it: make test SKIP=cuda"
        )


if __name__ == "__main__":
    print(cuda_environment())
