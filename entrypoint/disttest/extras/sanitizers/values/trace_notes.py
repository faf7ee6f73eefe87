"""A growing trace, with each thing and each content stored once.

A tensor's digest needs no operations of torch: no dispatch mode, profiler or graph sees it. Its memory is read by
address. ``Tensor.numpy()`` would do, but makes the storage one that cannot be resized, which breaks FSDP. CRC-32 depends
on the order of the bytes; sums and ``torch.hash_tensor`` do not see two numbers exchanged. A megabyte takes 0.3 ms, of
which the CRC takes 0.25 ms.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import zlib
from collections import Counter
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from disttest.extras.sanitizers.values.trace import MOST_ENTRIES, Content, Entry, Role, TensorPlace, Trace
from disttest.observe import Site, as_text

if TYPE_CHECKING:
    from numpy.typing import NDArray


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Subclasses (DTensor, FakeTensor, FSDP's flat parameter) are more than their numbers."""
_BLOCKS = 32
_SMALLEST_BLOCK = 1024
# A thread that OpenBLAS starts would make the process unfit for forks.
_DOT = 8192
"""Numbers of one dot product; with more than 9,216 OpenBLAS starts threads."""
_SAMPLE = 2048
"""Numbers of half precision whose norm represents all: widening each takes longer than the digest."""

_DTYPES = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
}
_BY_SIZE = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


def read_tensor(tensor: Any, *, most_head: int) -> Content | None:
    """Read the content of a tensor; None if it has none that can be compared.

    Args:
        tensor: anything; a tensor on a device is copied to the host, which waits for its stream.
        most_head: bytes to keep verbatim.
    """
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_meta:
        return None
    # conj() sets a bit, and so does the imaginary part of a conjugate. The memory holds other numbers than
    # the tensor.
    if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return None
    try:
        if tensor.device.type != "cpu":
            # A copy to the host would end the capture of a CUDA graph with an error.
            if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
                return None
            tensor = tensor.detach().cpu()
        numbers = _numbers(tensor)
    except RuntimeError:  # from functorch: there is no memory to read
        return None
    return None if numbers is None else _content(numbers, tensor.dtype, most_head)


def _numbers(tensor: torch.Tensor) -> NDArray[Any] | None:
    """Return the numbers in logical order, flat; as a view of the memory if that is contiguous."""
    dtype: Any = _DTYPES.get(tensor.dtype) or _BY_SIZE.get(tensor.element_size())
    count, size = tensor.numel(), tensor.element_size()
    if dtype is None or not count or not (address := tensor.data_ptr()):
        return None
    if tensor.is_contiguous():
        # Tensor.numpy() would make the storage non-resizable: https://github.com/pytorch/pytorch/issues/119233
        whole: Any = (ctypes.c_char * (count * size)).from_address(address)
        return np.frombuffer(whole, dtype)
    # numpy copies the numbers into logical order: two ranks may have one tensor with different strides.
    strides = tensor.stride()
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, strides, strict=True))
    memory: Any = (ctypes.c_char * (span * size)).from_address(address)
    steps = tuple(stride * size for stride in strides)
    return np.ndarray(tuple(tensor.shape), dtype, memory, 0, steps).ravel()


def _content(numbers: NDArray[Any], dtype: torch.dtype, most_head: int) -> Content:
    octets: Any = numbers.view(np.uint8)
    data = memoryview(octets)
    digest, blocks, block = _digest(data)
    norm, bad, bad_at = (
        _measure(numbers, dtype) if dtype.is_floating_point or dtype.is_complex else _NO_MEASURE
    )
    return Content(
        digest=digest,
        head=bytes(data[:most_head]),
        blocks=blocks,
        block=block,
        norm=norm,
        bad=bad,
        bad_at=bad_at,
    )


_NO_MEASURE: tuple[float | None, str, int] = (None, "", -1)


def _digest(data: memoryview) -> tuple[int, tuple[int, ...], int]:
    size = len(data)
    # A small tensor needs no parts: the head usually has all of its bytes.
    if size <= _SMALLEST_BLOCK:
        return zlib.crc32(data), (), 0
    block = max(_SMALLEST_BLOCK, -(-size // _BLOCKS) + 15 & ~15)  # a multiple of 16: no number is cut
    blocks = tuple(zlib.crc32(data[start : start + block]) for start in range(0, size, block))
    # The digest of digests: one pass over the memory gives the parts and the whole.
    return zlib.crc32(np.array(blocks, np.uint32).tobytes()), blocks, block


def _measure(numbers: NDArray[Any], dtype: torch.dtype) -> tuple[float | None, str, int]:
    """Return the norm, and kind and index of the first number that is not finite."""
    if numbers.dtype.itemsize == 2:
        return _measure_half(numbers, dtype)
    if numbers.dtype.kind not in "fc":  # numpy has no 8-bit floats
        return _NO_MEASURE
    parts = numbers.view(numbers.real.dtype) if numbers.dtype.kind == "c" else numbers
    # A finite sum shows that all numbers are finite, so one fast pass is enough for almost all tensors.
    # _first_bad finds out whether large numbers have only overflowed.
    squares = _squares(parts)
    if math.isfinite(squares):
        return math.sqrt(squares), "", -1
    return (None, *_first_bad(numbers))


def _squares(parts: NDArray[Any]) -> float:
    """Return the sum of the squares; not finite if it overflows."""
    whole = len(parts) // _DOT * _DOT
    rows, rest = parts[:whole].reshape(-1, 1, _DOT), parts[whole:]
    # An overflow is an answer here, and no warning of the test's numpy.
    with np.errstate(all="ignore"):
        squares = float(np.dot(rest, rest))
        if whole:
            squares += float(np.matmul(rows, rows.transpose(0, 2, 1)).sum(dtype=np.float64))
    return squares


def _measure_half(numbers: NDArray[Any], dtype: torch.dtype) -> tuple[float | None, str, int]:
    if not _are_finite(numbers.view(np.uint16), 0x7F80 if dtype is torch.bfloat16 else 0x7C00):
        return (None, *_first_bad(_widened(numbers, dtype)))
    sample = _widened(numbers[:: -(-len(numbers) // _SAMPLE)], dtype).astype(np.float64)
    return math.sqrt(float(np.dot(sample, sample))), "", -1


def _are_finite(bits: NDArray[np.uint16], infinity: int) -> bool:
    """Whether all are finite. As integers, infinity and NaN are the largest numbers of either sign."""
    return bool(bits.view(np.int16).max() < infinity and bits.max() < infinity + 0x8000)


def _widened(numbers: NDArray[Any], dtype: torch.dtype) -> NDArray[Any]:
    if dtype is torch.bfloat16:
        return (numbers.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def _first_bad(numbers: NDArray[Any]) -> tuple[str, int]:
    """Return kind and index of the first number that is not finite; empty if only the squares overflow."""
    places = np.flatnonzero(~np.isfinite(numbers))
    if not len(places):
        return "", -1
    return ("nan" if np.isnan(numbers[places[0]]) else "inf"), int(places[0])


_PIPELINE_STAGE = "torch.distributed.pipelining.stage"
_INFERENCES = frozenset({"_shape_inference", "_forward_metadata_inference", "_backward_metadata_inference"})
"""Methods of a pipeline stage that run its module on uninitialised memory, for the shapes of its outputs."""


def infers_shapes() -> bool:
    """Whether this thread is in one of ``_INFERENCES``."""
    # Few programs have pipelines. The others skip the walk over the stack, which each forward would pay.
    stage = sys.modules.get(_PIPELINE_STAGE)
    # inspect.currentframe has no depth, and inspect.stack reads source files (Python 3.11 to 3.13).
    frame: FrameType | None = sys._getframe(1) if stage else None  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_name in _INFERENCES and frame.f_globals is vars(stage):
            return True
        frame = frame.f_back
    return False


_LONG_HEAD, _SHORT_HEAD = 4096, 64
"""Bytes of a tensor that are kept verbatim: while there is room, and afterwards."""
_ROOM = 1 << 20
"""Bytes for the heads of one test."""


class Notes:
    """Observations of a rank since a test began."""

    def __init__(self) -> None:
        self._places: dict[TensorPlace, int] = {}
        self._contents: dict[Content, int] = {}
        self._entries: list[Entry] = []
        self._times: Counter[tuple[Role, int, str, int]] = Counter()
        self._room = _ROOM
        self._beyond = 0
        self._lock = threading.Lock()
        """Threads may use one group each, and call at the same time."""
        self.doubtful = False

    def add(self, place: TensorPlace, tensor: Any, number: int = 0) -> None:
        """Note a tensor in its present state.

        Args:
            place: description of the tensor.
            tensor: anything; values other than plain tensors are ignored.
            number: number of the call; 0: count the observations of the same thing.
        """
        if len(self._entries) >= MOST_ENTRIES:
            self._beyond += 1
            return
        # Outside of the lock: zlib releases the GIL for more than a few kilobytes, so threads read side by
        # side.
        content = read_tensor(tensor, most_head=_LONG_HEAD if self._room > 0 else _SHORT_HEAD)
        if content is None:
            return
        with self._lock:
            index = self._contents.get(content)
            if index is None:
                index = self._contents[content] = len(self._contents)
                self._room -= len(content.head)
            if not number:
                same = (place.role, place.model, place.name, place.index)
                self._times[same] += 1
                number = self._times[same]
            self._entries.append(Entry(self._places.setdefault(place, len(self._places)), index, number))

    def trace(self) -> Trace:
        """Return the trace."""
        return Trace(
            places=tuple(self._places),
            contents=tuple(self._contents),
            entries=tuple(self._entries),
            beyond=self._beyond,
            doubtful=self.doubtful,
        )


def site_fields(site: Site) -> dict[str, Any]:
    """Return the fields of a source line."""
    return {"file": as_text(site.file), "line": site.line}


def default_rank() -> int:
    """Return the rank of this process in the default group; -1 without one."""
    dist = sys.modules["torch.distributed"]
    return int(dist.get_rank()) if dist.is_initialized() else -1
