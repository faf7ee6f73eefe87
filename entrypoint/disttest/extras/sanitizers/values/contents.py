"""Compare two contents: where they first differ, and by how much. Pure functions."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from disttest.extras.sanitizers.values.trace import Content, TensorPlace
from disttest.model import Frozen

_FORMATS = {
    "bool": "?",
    "uint8": "B",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "complex64": "ff",
    "complex128": "dd",
}
_BFLOAT16 = "bfloat16"
_FLOATING = frozenset({"float16", "float32", "float64", "complex64", "complex128", _BFLOAT16})


class Difference(Frozen):
    """The first difference between two tensors."""

    at: str
    """``index [1, 3]``, or ``indices 1024 to 2047`` if only digests of parts of a large tensor are known."""
    values: tuple[str, str] | None = None
    """The values of both; None if they are not kept."""


def first_difference(place: TensorPlace, one: Content, other: Content) -> Difference:
    """Find the first difference between two unequal contents of one dtype and shape."""
    size = _item_size(place)
    # Bytes, not numbers: NaN differs from itself, and 0 equals -0.
    kept = min(len(one.head), len(other.head)) // size * size if size else 0
    for start in range(0, kept, size or 1):
        parts = one.head[start : start + size], other.head[start : start + size]
        if parts[0] != parts[1]:
            return Difference(
                at=f"index {_index(start // size, place.shape)}", values=_shown_apart(place.dtype, *parts)
            )
    return Difference(at=_span(place, one, other, size))


def differ(one: Content, other: Content, dtype: str, tolerance: float | None) -> bool:
    """Whether two contents differ.

    Args:
        one: content of a tensor.
        other: content of a tensor of the same dtype and shape.
        dtype: dtype of both.
        tolerance: None if every bit counts. Otherwise numbers may differ by this share of the larger one, or of the
            tensor's root mean square if they are smaller than that. The same holds for the norms of the tensors.
    """
    # Integers are indices and counts: one of them that is nearly right is wrong.
    if tolerance is None or dtype not in _FLOATING:
        return one.digest != other.digest
    if one.digest == other.digest:
        return False
    if one.bad != other.bad or one.norm is None or other.norm is None:
        return True
    # Of a large tensor only the first bytes are kept. Its norm covers the rest.
    if not math.isclose(one.norm, other.norm, rel_tol=tolerance, abs_tol=0.0):
        return True
    numbers = zip(_decode(dtype, one.head), _decode(dtype, other.head), strict=False)
    count = max(1, len(one.head) // max(1, _size_of(dtype)))
    # Numbers near 0 differ by rounding alone, so they are measured against the root mean square.
    least = tolerance * max(one.norm, other.norm) / math.sqrt(count)
    return any(not math.isclose(a, b, rel_tol=tolerance, abs_tol=least) for a, b in numbers)


def is_constant(content: Content, dtype: str) -> bool:
    """Whether all kept numbers are equal, as the zeros and ones of an initialisation without a seed."""
    size = _size_of(dtype)
    return not size or content.head[size:] == content.head[:-size]


def _item_size(place: TensorPlace) -> int:
    return _size_of(place.dtype)


def _size_of(dtype: str) -> int:
    return 2 if dtype == _BFLOAT16 else struct.calcsize(f"={_FORMATS.get(dtype, '')}")


def _decode(dtype: str, data: bytes) -> Sequence[float]:
    """Decode the numbers; complex numbers as two parts."""
    size = _size_of(dtype)
    count = len(data) // size if size else 0
    if dtype == _BFLOAT16:
        # bfloat16 is the upper half of a float32, so two zero bytes come before it (little-endian). struct
        # has no letter for it.
        halves = (data[at : at + 2] for at in range(0, 2 * count, 2))
        return [struct.unpack("<f", b"\0\0" + half)[0] for half in halves]
    return struct.unpack(f"={_FORMATS[dtype] * count}", data[: count * size]) if count else ()


def show_number(dtype: str, data: bytes, digits: int = 6) -> str:
    """Format one number for messages."""
    parts = [f"{part:.{digits}g}" if dtype in _FLOATING else str(part) for part in _decode(dtype, data)]
    return parts[0] if len(parts) == 1 else f"({' + '.join(parts)}j)"


def _shown_apart(dtype: str, one: bytes, other: bytes) -> tuple[str, str]:
    """Format both with enough digits to distinguish them."""
    # 9 digits distinguish all numbers of float32, and 17 those of float64.
    for digits in (6, 9, 17):
        shown = show_number(dtype, one, digits), show_number(dtype, other, digits)
        if shown[0] != shown[1]:
            return shown
    return one.hex(), other.hex()  # NaNs with different bits


def _span(place: TensorPlace, one: Content, other: Content, size: int) -> str:
    pairs = zip(one.blocks, other.blocks, strict=False)
    number = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
    if number is None or not size or one.block != other.block:
        return "an index past those that are kept"
    count = math.prod(place.shape)
    first, end = number * one.block // size, min(count, (number + 1) * one.block // size)
    return f"indices {_index(first, place.shape)} to {_index(end - 1, place.shape)}"


def _index(flat: int, shape: Sequence[int]) -> str:
    found: list[int] = []
    for extent in reversed(shape):
        flat, at = divmod(flat, extent)
        found.insert(0, at)
    return str(found)


def index_of(flat: int, place: TensorPlace) -> str:
    """Format a flat index as ``[1, 3]``."""
    return _index(flat, place.shape)
