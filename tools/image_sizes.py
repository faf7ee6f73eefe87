"""Prints what takes the space in the image: of a lock file's wheels, as they are downloaded, and of a built image.

    python tools/image_sizes.py cuda            sizes of the wheels that requirements/cuda.lock names
    python tools/image_sizes.py --image NAME    layers of an image that the engine has

The first asks the package index for the length of each wheel and downloads none.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import requests
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)] + [
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
]
PYTHON = (3, 11)
BIG = 10_000_000


def wheels(lock: Path) -> Iterator[tuple[str, str]]:
    """Package and address of the wheel that pip would take for the image."""
    locked = subprocess.run(
        [
            "uv", "pip", "compile", "--quiet", str(lock), "--no-deps", "--no-header", "--format", "pylock.toml",
            "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28",
        ],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    order = ranks()
    for package in tomllib.loads(locked)["packages"]:
        usable = [(rank_of(wheel["url"], order), wheel["url"]) for wheel in package.get("wheels", ())]
        yield package["name"], min(usable)[1]


def ranks() -> dict[Tag, int]:
    """Tag -> preference, the most specific first."""
    tags = [*cpython_tags(PYTHON, platforms=PLATFORMS), *compatible_tags(PYTHON, platforms=PLATFORMS)]
    return {tag: place for place, tag in reversed(list(enumerate(tags)))}


def rank_of(url: str, order: dict[Tag, int]) -> int:
    """How well a wheel fits; the lower the better."""
    tags = parse_wheel_filename(url.rsplit("/", 1)[-1])[3]
    return min(order.get(tag, sys.maxsize) for tag in tags)


def length_of(url: str) -> int:
    """Bytes of a file on the index, by asking for its head."""
    answer = requests.head(url, allow_redirects=True, timeout=30)
    answer.raise_for_status()
    return int(answer.headers["content-length"])


def lock_table(name: str) -> Iterator[str]:
    """The wheels of a lock file by size, those below 10 MB together."""
    sizes = sorted(((length_of(url), package) for package, url in wheels(lock_file(name))), reverse=True)
    small = [size for size, _package in sizes if size < BIG]
    yield "| wheel | download |"
    yield "|---|---|"
    yield from (f"| {package} | {megabytes(size)} |" for size, package in sizes if size >= BIG)
    yield f"| {len(small)} smaller ones | {megabytes(sum(small))} |"
    yield f"| **together** | {megabytes(sum(size for size, _package in sizes))} |"


def lock_file(name: str) -> Path:
    """Path of a lock file."""
    return ROOT / "requirements" / f"{name}.lock"


def image_table(image: str) -> Iterator[str]:
    """The layers of an image that are not empty, the latest first."""
    lines = subprocess.run(
        ["docker", "history", "--format", "{{.Size}}\t{{.CreatedBy}}", image],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    yield "| layer | size |"
    yield "|---|---|"
    for line in lines:
        size, _, made_by = line.partition("\t")
        if size != "0B":
            yield f"| `{made_by[:70]}` | {size} |"


def megabytes(size: int) -> str:
    """As people read it."""
    return f"{size / 1e6:,.0f} MB"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lock", nargs="?", default="cuda")
    parser.add_argument("--image")
    asked = parser.parse_args()
    print("\n".join(image_table(asked.image) if asked.image else lock_table(asked.lock)))
