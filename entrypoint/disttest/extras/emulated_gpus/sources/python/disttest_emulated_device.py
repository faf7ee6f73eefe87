"""Module that torch loads at its import (entry point ``torch.backends``): install the operators of the device."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


# https://docs.pytorch.org/tutorials/unstable/python_extension_autoload.html
def autoload() -> None:
    """Let operators for CUDA tensors run the CPU's kernels on the same bytes."""
    import torch

    library = ctypes.CDLL(str(Path(__file__).parents[1] / "liboperators.so"))
    with _without_warnings():
        library.emulated_install_operators()
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide the line that the dispatcher writes to stderr for the first kernel that replaces another."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
