"""Bytes of strided views, and whether two views overlap. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_MOST_STEPS = 20_000
"""Steps of a comparison after which views count as disjoint; real views do not nest their strides that deeply."""


class StridedView(NamedTuple):
    """Bytes in memory: blocks of one size at strided addresses."""

    start: int
    """Address of the first byte."""
    block: int
    """Contiguous bytes."""
    dims: tuple[tuple[int, int], ...] = ()
    """Pairs of length and stride in bytes, the largest stride first."""

    @property
    def end(self) -> int:
        """Address behind the last byte."""
        return self.start + self.block + sum((size - 1) * stride for size, stride in self.dims)


def make_view(start: int, itemsize: int, sizes: Sequence[int], strides: Sequence[int]) -> StridedView | None:
    """Make the view of a tensor; None if it has no elements.

    Args:
        start: address of the first element.
        itemsize: bytes of an element.
        sizes: lengths of the dimensions.
        strides: strides of the dimensions, in elements.
    """
    if 0 in sizes:
        return None
    block = itemsize
    dims: list[tuple[int, int]] = []
    moving = [
        (stride * itemsize, size) for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride
    ]
    for stride, size in sorted(moving):
        if not dims and stride <= block:
            block = max(block, stride * (size - 1) + block)
        elif dims and stride == dims[-1][0] * dims[-1][1]:
            dims[-1] = (dims[-1][0] * size, dims[-1][1])
        else:
            dims.append((size, stride))
    return StridedView(start, block, tuple(reversed(dims)))


def share_bytes(first: StridedView, second: StridedView) -> bool:
    """Whether the views share a byte."""
    return _share(first, second, [_MOST_STEPS])


def _share(first: StridedView, second: StridedView, steps: list[int]) -> bool:
    if first.end <= second.start or second.end <= first.start:
        return False
    if not first.dims and not second.dims:
        return True
    steps[0] -= 1
    if steps[0] < 0:
        return False
    if _beat_together(first, second):
        return _share_in_step(first, second, steps)
    if not first.dims or (second.dims and _reach(second) > _reach(first)):
        first, second = second, first
    return any(_share(part, second, steps) for part in _parts_near(first, second))


def _reach(view: StridedView) -> int:
    return view.end - view.start


def _beat_together(first: StridedView, second: StridedView) -> bool:
    """Whether both have the same largest stride, and everything else of each fits into one step of it."""
    if not (first.dims and second.dims) or first.dims[0][1] != second.dims[0][1]:
        return False
    stride = first.dims[0][1]
    return all(_reach(_inner(view)) <= stride for view in (first, second))


def _inner(view: StridedView) -> StridedView:
    return StridedView(view.start, view.block, view.dims[1:])


def _share_in_step(first: StridedView, second: StridedView, steps: list[int]) -> bool:
    """Compare views with the same largest stride: only the two nearest steps of the other one matter."""
    (size, stride), (other, _) = first.dims[0], second.dims[0]
    ahead = (first.start - second.start) // stride
    for shift in (ahead, ahead + 1):
        if -size < shift < other and _share(
            _inner(first), _inner(second)._replace(start=second.start + shift * stride), steps
        ):
            return True
    return False


def _parts_near(view: StridedView, other: StridedView) -> list[StridedView] | tuple[StridedView, ...]:
    """Return the parts of a view along its largest stride that may overlap another view."""
    size, stride = view.dims[0]
    inner = _inner(view)
    lowest = max(0, -((inner.end - 1 - other.start) // stride))
    highest = min(size - 1, (other.end - 1 - inner.start) // stride)
    return tuple(
        inner._replace(start=inner.start + index * stride)
        for index in range(lowest, min(highest, lowest + _MOST_STEPS) + 1)
    )
