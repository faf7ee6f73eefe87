"""The NCCL library of this process."""

from __future__ import annotations

import ctypes
import os


def loaded_nccl() -> tuple[int, int, int] | None:
    """Return the version of the NCCL library that this process has loaded; None if it has loaded none."""
    # ``torch.cuda.nccl.version()`` returns the version that torch was built with. A different one runs if a newer
    # wheel is installed or ``LD_PRELOAD`` names one. The call initialises neither NCCL nor CUDA, so forks stay
    # possible.
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
        packed = ctypes.c_int()
        failed = library.ncclGetVersion(ctypes.byref(packed))
    except (OSError, AttributeError):
        return None
    return None if failed else unpack_version(packed.value)


def unpack_version(packed: int) -> tuple[int, int, int]:
    """Split ``NCCL_VERSION_CODE``: 23007 is 2.30.7."""
    # Up to 2.8 the major version counts thousands, later ten thousands.
    unit = 1000 if packed < 10000 else 10000
    return packed // unit, packed % unit // 100, packed % 100
