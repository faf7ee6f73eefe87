"""Prints how much code for each GPU architecture is in an environment: python tools/device_code.py SITE_PACKAGES.

CUDA's compilers put device code into a library as *fat binaries*: a header of 16 bytes (magic, version, its own size, size of
what follows), then an entry for each architecture, with a header of its own that says kind, size and architecture.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""Of the only version of the header there is, with its size."""
KINDS = {1: "PTX for {}", 2: "sm_{}"}
"""Other kinds are intermediate code for the linker."""
SMALLEST = 64
"""Bytes of an entry's header; the architecture stands at byte 28."""


def entries(data: mmap.mmap) -> Iterator[tuple[str, int]]:
    """Architecture and bytes of each piece of device code in a library."""
    at = data.find(MAGIC)
    while at >= 0:
        (size,) = struct.unpack_from("<Q", data, at + 8)
        end = at + 16 + size
        yield from entries_between(data, at + 16, min(end, len(data)))
        at = data.find(MAGIC, min(end, len(data)))


def entries_between(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[str, int]]:
    """Those of one fat binary."""
    while at + SMALLEST <= end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        (architecture,) = struct.unpack_from("<I", data, at + 28)
        if header < SMALLEST or at + header + size > end:
            return
        yield KINDS.get(kind, "for the linker").format(architecture), header + size
        at += header + size


def device_code(site: Path) -> Counter[str]:
    """Architecture -> bytes, over all libraries."""
    found: Counter[str] = Counter()
    for path in site.rglob("*.so*"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                for architecture, size in entries(data):
                    found[architecture] += size
    return found


if __name__ == "__main__":
    counted = device_code(Path(sys.argv[1]))
    print("| code | size |\n|---|---|")
    for name, size in counted.most_common():
        print(f"| {name} | {size / 1e6:,.0f} MB |")
    print(f"| **together** | {counted.total() / 1e6:,.0f} MB |")
