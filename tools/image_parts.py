"""Prints what the libraries of the CUDA image are needed for, part by part: size, what is read of it, and what fails without it.

    python tools/image_parts.py                       parts, their sizes, and which of them torch is linked to
    python tools/image_parts.py --cold                and what a run reads of them from a cold page cache
    python tools/image_parts.py --without PART…       and a run without these, on emulated GPUs
    python tools/image_parts.py --strip               and a run with libraries that have no symbols

Works on a copy of the environment of tests/cuda, which has the wheels of requirements/cuda.lock (hard links, on the same disk):
a part is moved away and never written to. What only a GPU loads (kernels of cuDNN, nvrtc) is not shown by emulated ones.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from cuda_environment import CACHE, CudaEnvironment, cuda_environment

NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
REST = "other packages"
PARTS: Mapping[str, Callable[[PurePath], bool]] = {
    "bytecode": lambda path: "__pycache__" in path.parts,
    "tests of packages": lambda path: bool({"test", "tests"} & set(path.parts)),
    "static libraries": lambda path: path.suffix == ".a",
    "headers": lambda path: "include" in path.parts,
    "libraries that none names": lambda path: path.name.startswith(UNNAMED) or ".alt.so" in path.name,
    "triton": lambda path: path.parts[0] == "triton",
    "torch": lambda path: path.parts[0] == "torch",
    "cuBLAS": lambda path: path.name.startswith("libcublas"),
    "cuDNN": lambda path: path.parts[:2] == ("nvidia", "cudnn"),
    "cuFFT": lambda path: path.name.startswith("libcufft.so"),
    "NCCL": lambda path: path.parts[:2] == ("nvidia", "nccl"),
    "cuSPARSELt": lambda path: path.parts[:2] == ("nvidia", "cusparselt"),
    "cuSPARSE": lambda path: path.name.startswith("libcusparse.so"),
    "cuSOLVER": lambda path: path.name.startswith("libcusolver.so"),
    "cuRAND": lambda path: path.name.startswith("libcurand"),
    "nvrtc": lambda path: path.name.startswith("libnvrtc"),
    "nvJitLink": lambda path: path.name.startswith("libnvJitLink"),
    "NVSHMEM": lambda path: path.parts[:2] == ("nvidia", "nvshmem"),
    "cuFile": lambda path: path.name.startswith("libcufile"),
    "profilers": lambda path: path.name.startswith(PROFILERS),
    "sympy, networkx, mpmath": lambda path: path.parts[0] in {"sympy", "networkx", "mpmath"},
    "pip, setuptools": lambda path: path.parts[0] in {"pip", "setuptools"},
}
"""Name -> whether a file below site-packages belongs to it; the first that fits counts."""
UNNAMED = ("libcusolverMg", "libcufftw", "libnvblas")
PROFILERS = ("libcupti", "libnvperf", "libpcsampling", "libcheckpoint")


def part_of(path: PurePath) -> str:
    """The part that a file (relative to site-packages) belongs to."""
    return next((name for name, fits in PARTS.items() if fits(path)), REST)


def files(site: Path) -> Iterator[Path]:
    """The files of an environment, relative to its site-packages."""
    yield from (
        path.relative_to(site) for path in site.rglob("*") if path.is_file() and not path.is_symlink()
    )


def sizes(site: Path) -> Counter[str]:
    """Part -> bytes."""
    found: Counter[str] = Counter()
    for path in files(site):
        found[part_of(path)] += (site / path).stat().st_size
    return found


@contextmanager
def copy_of(environment: CudaEnvironment) -> Iterator[Path]:
    """A copy of the wheels' venv from which files may be moved away: hard links, which are never written through."""
    wheels = environment.torch.parents[3]
    with tempfile.TemporaryDirectory(prefix="image-parts-", dir=CACHE) as folder:
        copy = Path(folder) / "venv"
        shutil.copytree(wheels, copy, symlinks=True, copy_function=os.link)
        yield copy


@contextmanager
def without(site: Path, parts: Sequence[str]) -> Iterator[None]:
    """Has the files of some parts moved aside."""
    aside = site.parents[3] / "aside"
    moved = [path for path in files(site) if part_of(path) in parts]
    for path in moved:
        (aside / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).rename(aside / path)
    yield
    for path in moved:
        (aside / path).rename(site / path)


def strip(site: Path) -> int:
    """Replace the libraries that have symbols or debug information by ones without, and return how many bytes that saves."""
    before = sum(sizes(site).values())
    for path in [site / path for path in files(site) if is_library(path)]:
        if ".symtab" in output_of("readelf", "--sections", "--wide", path):
            less = path.with_suffix(".stripped")
            output_of("strip", "--strip-unneeded", "-o", less, path)
            less.replace(path)
    return before - sum(sizes(site).values())


def output_of(*command: str | Path) -> str:
    """What a program prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def linked(site: Path) -> set[str]:
    """Parts with a library that torch's own are linked to, directly or not: without it ``import torch`` fails."""
    libraries = {path.name: path for path in files(site) if is_library(path)}
    found: set[Path] = set()
    new = {path for path in libraries.values() if path.parts[:2] == ("torch", "lib")}
    while new:
        found |= new
        told = output_of("readelf", "--dynamic", *(site / path for path in new))
        names = set(NEEDED.findall(told)) & set(libraries)
        new = {libraries[name] for name in names} - found
    return {part_of(path) for path in found}


def is_library(path: PurePath) -> bool:
    """Whether it is a shared library."""
    return ".so" in path.suffixes


def attempt(environment: CudaEnvironment, copy: Path, suites: list[str]) -> str:
    """What came of the suites in the copy; or why they could not start."""
    environ = environment.environ(
        2, PYTHONDONTWRITEBYTECODE="1", DISTTEST_LEASE_DIR=str(copy.parent / "leases")
    )
    environ["PYTHONPATH"] = f"{environ['PYTHONPATH']}{os.pathsep}{ROOT / 'entrypoint'}"
    python = str(copy / "bin" / "python")
    done = subprocess.run([python, "-c", "import torch"], env=environ, capture_output=True, text=True)
    if done.returncode:
        return f"`import torch`: {done.stderr.strip().splitlines()[-1]}"
    results = str(copy.parent / "results")
    run = [python, "-m", "disttest", "run", *suites, "--world-sizes", "2", "--results", results]
    done = subprocess.run(run, env=environ, capture_output=True, text=True, cwd=copy.parent)
    counts = [line for line in done.stdout.splitlines() if " passed" in line or " failed" in line]
    return f"exit code {done.returncode}: {(counts or done.stderr.splitlines() or ['nothing was said'])[-1]}"


def evict(site: Path) -> None:
    """Drop the files from the page cache, those that no process has mapped."""
    for path in files(site):
        descriptor = os.open(site / path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def resident(site: Path) -> Counter[str]:
    """Part -> bytes of it in the page cache."""
    paths = list(files(site))
    found: Counter[str] = Counter()
    for start in range(0, len(paths), 1000):
        some = paths[start : start + 1000]
        asked = ("fincore", "--bytes", "--noheadings", "--raw", "--output", "RES")
        told = output_of(*asked, *(site / path for path in some)).split()
        for path, size in zip(some, told, strict=True):
            found[part_of(path)] += int(size)
    return found


def read_from_cold(environment: CudaEnvironment, copy: Path, site: Path, suites: list[str]) -> Counter[str]:
    """What the suites read, by part; the time of an import, cold and warm, is told beside it."""
    evict(site)
    for state in ("cold", "warm"):
        begun = time.monotonic()
        subprocess.run(
            [copy / "bin" / "python", "-B", "-c", "import torch"], env=environment.environ(2), check=True
        )
        took_s = time.monotonic() - begun
        read = sum(resident(site).values())
        tell(f"import torch, {state}: {took_s:.1f} s, {megabytes(read)} in the page cache")
    evict(site)
    tell(f"the suites: {attempt(environment, copy, suites)}")
    return resident(site)


def tell(line: str) -> None:
    """Beside the table."""
    print(line, file=sys.stderr, flush=True)


def megabytes(size: int) -> str:
    """As people read it."""
    return f"{size / 1e6:,.0f} MB"


def print_table(site: Path, read: Counter[str]) -> None:
    """The parts by size; those that nobody read have no third column."""
    found, needed = sizes(site), linked(site)
    print("| part | size | read | linked |\n|---|---|---|---|")
    for part, size in found.most_common():
        print(f"| {part} | {megabytes(size)} | {megabytes(read[part])} | {'yes' if part in needed else ''} |")
    print(f"| **together** | {megabytes(found.total())} | {megabytes(read.total())} | |", flush=True)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], choices=PARTS, metavar="PART")
    parser.add_argument("--strip", action="store_true")
    parser.add_argument("--suites", nargs="*", default=["smoke"])
    asked = parser.parse_args()
    environment = cuda_environment()
    with copy_of(environment) as copy:
        (site,) = copy.glob("lib/python3*/site-packages")
        read = read_from_cold(environment, copy, site, asked.suites) if asked.cold else Counter()
        print_table(site, read)
        if asked.without:
            with without(site, asked.without):
                tell(f"without {', '.join(asked.without)}: {attempt(environment, copy, asked.suites)}")
        if asked.strip:
            tell(
                f"symbols take {megabytes(strip(site))}; without: {attempt(environment, copy, asked.suites)}"
            )


if __name__ == "__main__":
    main()
