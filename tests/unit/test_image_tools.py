"""tools/image_parts.py and tools/device_code.py: what they count of an image's libraries, and as what."""

from __future__ import annotations

import struct
import sys
from pathlib import Path, PurePath

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from device_code import MAGIC, device_code
from image_parts import part_of


def fat_binary(*pieces: tuple[int, int, int]) -> bytes:
    """As CUDA's compilers write it, from kind, architecture and bytes of code."""
    body = b""
    for kind, architecture, size in pieces:
        head = struct.pack("<HHIQ", kind, 0x101, 64, size).ljust(28, b"\0") + struct.pack("<I", architecture)
        body += head.ljust(64, b"\0") + bytes(size)
    return MAGIC + struct.pack("<Q", len(body)) + body


def test_device_code_is_counted_by_architecture(tmp_path: Path) -> None:
    code = fat_binary((2, 80, 100), (2, 90, 50), (1, 90, 8)) + b"other" + fat_binary((2, 90, 6), (8, 75, 1))
    (tmp_path / "liba.so.1").write_bytes(b"\x7fELF" + code)
    (tmp_path / "libb.so").write_bytes(b"no code")
    (tmp_path / "empty.so").touch()
    (tmp_path / "text.py").write_bytes(code)
    assert device_code(tmp_path) == {"sm_80": 164, "sm_90": 184, "PTX for 90": 72, "for the linker": 65}


def test_device_code_that_is_cut_off_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "liba.so").write_bytes(fat_binary((2, 80, 100), (2, 90, 50))[:-1])
    assert device_code(tmp_path) == {"sm_80": 164}


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("torch/lib/libtorch_cpu.so", "torch"),
        ("torch/include/c10/macros.h", "headers"),
        ("torch/testing/_internal/common_utils.py", "torch"),
        ("triton/backends/nvidia/lib/cupti/libcupti_static.a", "static libraries"),
        ("nvidia/cu13/lib/libnvrtc.alt.so.13", "libraries that none names"),
        ("nvidia/cu13/lib/libnvrtc.so.13", "nvrtc"),
        ("nvidia/cu13/lib/libcusolverMg.so.12", "libraries that none names"),
        ("sympy/core/tests/__pycache__/test_x.pyc", "bytecode"),
        ("sympy/core/tests/test_x.py", "tests of packages"),
        ("six.py", "other packages"),
    ],
)
def test_a_file_is_of_the_first_part_that_it_fits(path: str, part: str) -> None:
    assert part_of(PurePath(path)) == part
