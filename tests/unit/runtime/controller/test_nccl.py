"""The version of the NCCL library that is loaded."""

from __future__ import annotations

import ctypes

import pytest

from disttest.runtime.controller.target_host import loaded_nccl, unpack_version


@pytest.mark.parametrize(
    ("packed", "version"), [(23007, (2, 30, 7)), (22907, (2, 29, 7)), (21805, (2, 18, 5)), (2804, (2, 8, 4))]
)
def test_version_codes(packed: int, version: tuple[int, int, int]) -> None:
    assert version == unpack_version(packed)


def test_a_process_without_nccl_has_no_version() -> None:
    assert loaded_nccl() is None


@pytest.mark.parametrize(("code", "expected"), [(0, (2, 30, 7)), (3, None)])
def test_the_library_is_asked(monkeypatch: pytest.MonkeyPatch, code: int, expected: object) -> None:
    class Library:
        @staticmethod
        def ncclGetVersion(pointer: object) -> int:
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = 23007
            return code

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library)

    assert expected == loaded_nccl()
