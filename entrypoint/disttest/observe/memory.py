"""Bytes of tensors, read without torch operations where possible: modes of the test could observe those."""

from __future__ import annotations

import contextlib
import ctypes
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch


def can_be_kept(tensor: torch.Tensor) -> bool:
    """Return whether the values are plain memory of this process."""
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def bytes_of(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the values of the tensors, one after another."""
    # `Tensor.numpy()` would create storages that cannot be resized.
    return b"".join(ctypes.string_at(each.data_ptr(), each.nbytes) for each in map(_dense, tensors))


def digest_of(tensors: Sequence[torch.Tensor]) -> int:
    """Return the CRC-32 of the values."""
    # 0.25 ms per MB. `hash_tensor` and sums are as fast, but do not detect two exchanged numbers.
    digest = 0
    for each in map(_dense, tensors):
        digest = zlib.crc32(_memory(each), digest)
    return digest


def fill(tensors: Sequence[torch.Tensor], body: memoryview) -> None:
    """Write values into tensors.

    Raises:
        ValueError: the tensors have another size.
    """
    data, at = body, 0
    if len(data) != sum(each.nbytes for each in tensors):
        raise ValueError(f"{len(data)} bytes were recorded, for {sum(each.nbytes for each in tensors)}")
    for each in tensors:
        part = data[at : at + each.nbytes]
        at += each.nbytes
        # Conjugation and negation are lazy: the memory of such a view has other values than the view.
        if not each.is_contiguous() or each.is_conj() or each.is_neg():
            dense = torch.empty(each.shape, dtype=each.dtype)
            _memory(dense)[:] = bytes(part)
            with _unseen():
                each.copy_(dense)
        # An empty tensor has no memory: its address is 0.
        elif part:
            _memory(each)[:] = bytes(part)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    with _unseen():
        return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _memory(tensor: torch.Tensor) -> Any:
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Hide the operations inside the block from modes of the test and from autograd."""
    # No public context hides operations from dispatch modes (torch 2.9 to 2.15).
    with torch._C._DisableTorchDispatch(), torch.no_grad():  # noqa: SLF001
        yield
