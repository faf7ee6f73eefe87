"""Build the libraries of the emulated device against the installed CUDA build of torch.

Users build them too, so the sources are part of the package. They are compiled against the headers of the installed
torch: a changed signature fails to compile.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from disttest.errors import UsageError
from disttest.model import Frozen

SOURCES = Path(__file__).parent / "sources"
COMPILER = "g++"
_WHEELS = ("torch", "nvidia-cuda-runtime", "nvidia-nccl-cu13")
"""Wheels with the headers to compile against."""

_COMMON = ("-O1", "-g1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")


class TorchInstallation(Frozen):
    """Folders of an installed CUDA build of torch."""

    torch: Path
    """Folder of the package."""
    cuda: Path
    """Folder of CUDA's headers."""
    nccl: Path
    """Folder of nccl.h."""
    versions: tuple[str, ...]


class Library(Frozen):
    """A library and its sources."""

    name: str
    sources: tuple[str, ...]
    after: str = ""
    """Library that it is linked with, which has to be built first."""
    torch: bool = False
    """Whether it is linked with torch's C++ libraries."""


LIBRARIES = (
    Library(
        name="libcudart.so.13",
        sources=("cudart.cpp", "cudart_memory.cpp", "cudart_streams.cpp", "cudart_refused.cpp"),
    ),
    Library(name="libcuda.so.1", sources=("driver.cpp",), after="libcudart.so.13"),
    Library(name="libnccl.so.2", sources=("nccl.cpp",), after="libcudart.so.13"),
    Library(name="libnvidia-ml.so.1", sources=("nvml.cpp",)),
    Library(name="liboperators.so", sources=("operators.cpp", "operators_missing.cpp"), torch=True),
)


def default_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder in which built libraries are kept for the user's next run."""
    home = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "disttest"


def build_libraries(cache: Path, *, tell: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder of the libraries for the installed torch and these sources; build them if necessary.

    Args:
        cache: folder for the built libraries; several processes may ask at the same time.
        tell: prints a line before a build, which takes a minute.

    Raises:
        UsageError: the CUDA build of torch or a compiler is missing, or the compiler fails.
    """
    installed = find_torch()
    folder = cache / f"emulated-device-{_key(installed)}"
    # A folder with the key in its name is complete, since it was renamed into place.
    if folder.is_dir():
        return folder
    if shutil.which(COMPILER) is None:
        raise UsageError(
            f"the emulated device is built on first use, and there is no {COMPILER} here. "
            "Install one (Debian and Ubuntu: apt-get install g++) and run again."
        )
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / f"{folder.name}.lock"):
        # Again, now with the lock: another process may have built it meanwhile.
        if not folder.is_dir():
            tell(f"building the emulated device into {folder} (once, about a minute)")
            _build(installed, folder)
    return folder


def find_torch() -> TorchInstallation:
    """Find the installed CUDA build of torch, without importing it.

    Raises:
        UsageError: it is not installed.
    """
    folders = _folders("torch"), _folders("nvidia")
    torch = next((f for f in folders[0] if (f / "lib" / "libtorch_cuda.so").exists()), None)
    cuda = next((f / "cu13/include" for f in folders[1] if (f / "cu13/include/cuda.h").exists()), None)
    nccl = next((f / "nccl/include" for f in folders[1] if (f / "nccl/include/nccl.h").exists()), None)
    if torch is None or cuda is None or nccl is None:
        raise UsageError(
            "the emulated device runs torch's CUDA build for CUDA 13, which is not installed here. "
            "Install it (pip install torch, not from the index of CPU builds), or use --device cpu."
        )
    versions = tuple(f"{name} {metadata.version(name)}" for name in _WHEELS)
    return TorchInstallation(torch=torch, cuda=cuda, nccl=nccl, versions=versions)


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in spec.submodule_search_locations or ()] if spec else []


def _key(installed: TorchInstallation) -> str:
    digest = hashlib.sha256("\n".join(installed.versions).encode())
    # This file has the flags of the compiler, so it counts as a source.
    for path in [Path(__file__), *sorted(p for p in SOURCES.rglob("*") if p.is_file())]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        # The kernel releases the lock of a killed process. The file stays, since removing it would race with
        # waiting processes.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(installed: TorchInstallation, folder: Path) -> None:
    """Build in a temporary folder and rename it, so that a killed build leaves no incomplete libraries."""
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as temporary:
        made = Path(temporary) / "made"
        shutil.copytree(SOURCES / "python", made / "python")
        # The slowest first; a library is built after the one that it is linked with.
        rest = [library for library in LIBRARIES if not library.torch and not library.after]
        # Threads are enough: each waits for a compiler, which is a process.
        with ThreadPoolExecutor() as threads:
            slow = [threads.submit(_make, lib, installed, made) for lib in LIBRARIES if lib.torch]
            for library in [*rest, *(library for library in LIBRARIES if library.after)]:
                _make(library, installed, made)
            for future in slow:
                future.result()
        made.rename(folder)


def _make(library: Library, installed: TorchInstallation, made: Path) -> None:
    command = _command(library, installed, made)
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode:
        raise UsageError(
            f"{COMPILER} could not build {library.name} of the emulated device "
            f"(torch {metadata.version('torch')}):\n{ended.stderr[-4000:]}"
        )


def _command(library: Library, installed: TorchInstallation, made: Path) -> Sequence[str]:
    # The CUDA headers of the wheels lack those that only nvcc needs; SOURCES contains them.
    includes = [SOURCES, installed.cuda, installed.nccl]
    links = [f"-Wl,-soname,{library.name}", "-ldl"]
    if library.name == "libcudart.so.13":  # torch requires this symbol version
        links.append(f"-Wl,--version-script,{SOURCES / 'cudart.map'}")
    if library.after:
        # $ORIGIN: a library finds libcudart next to itself, wherever the cache is.
        links += [f"-L{made}", f"-l:{library.after}", "-Wl,-rpath,$ORIGIN"]
    if library.torch:
        headers = installed.torch / "include"
        includes += [headers, headers / "torch/csrc/api/include"]
        links += [f"-L{installed.torch / 'lib'}", "-lc10", "-ltorch_cpu", "-lc10_cuda"]
    return [
        COMPILER,
        "-std=c++20",
        *_COMMON,
        *(f"-I{folder}" for folder in includes),
        *(str(SOURCES / name) for name in library.sources),
        "-o",
        str(made / library.name),
        *links,
    ]
