"""Pending calls of a rank, when each is complete, and the memory that it uses."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.multiprocessing.reductions import StorageWeakRef

from disttest.extras.sanitizers.order.order_recorder import sign
from disttest.extras.sanitizers.order.stream import CallSignature
from disttest.observe import Call, Site, Wait, WaitKind
from disttest.observe.operations import IN_PLACE

if TYPE_CHECKING:
    import torch


NCCL = "nccl"


class Policy:
    """A wait completes its call. If calls of a group run in order (NCCL), it completes the earlier ones, too.

    Args:
        as_nccl: treat all backends as NCCL; otherwise only NCCL runs calls in order.
    """

    def __init__(self, *, as_nccl: bool) -> None:
        self._as_nccl = as_nccl

    def in_order(self, first: Call, later: Call) -> bool:
        """Whether a later call runs only after a first one is complete."""
        # ProcessGroupNCCL has a stream for the collectives of a group, and one for the messages of each pair.
        in_one_queue = (first.group.name, first.peer) == (later.group.name, later.peer)
        return in_one_queue and (self._as_nccl or first.group.backend == NCCL)

    def is_over(self, call: Call, wait: Wait) -> bool:
        """Whether a call is complete once a wait is over."""
        if wait.kind is WaitKind.BACKWARD:
            return call.by_cpp and call.in_backward and not call.is_functional and _ended_by(wait, call)
        waited = wait.call
        # A wait says nothing about calls that were issued after its own.
        if waited is None or call.n > waited.n:
            return False
        if call.n == waited.n or self.in_order(call, waited):
            return True
        # A functional collective that issues several calls is waited for by its last one.
        return call.is_functional and wait.kind is WaitKind.TENSOR and call.site == waited.site


def _ended_by(wait: Wait, call: Call) -> bool:
    """Whether a call from C++ belongs to a backward pass: of the same thread, or of one of torch's threads."""
    # A thread of the engine for a GPU has no Python frame, so its calls have no site.
    return call.thread == wait.thread or call.site.code is None


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
    # Strides of torch are not negative. A stride of 0 (expand) repeats the same bytes, and so adds none.
    moving = [
        (stride * itemsize, size) for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride
    ]
    # From the smallest stride: contiguous dimensions become one block, and regular ones become one dimension.
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
    # Too complicated counts as disjoint: a missed race is better than a false one.
    if steps[0] < 0:
        return False
    if _beat_together(first, second):
        return _share_in_step(first, second, steps)
    # Divide the larger one: most of its parts miss the other view, and _parts_near leaves them out.
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


class Region(NamedTuple):
    """A tensor of a pending call."""

    view: StridedView
    storage: tuple[int, int]
    """First address of the storage, and the one behind the last."""
    is_written: bool
    """Whether the call writes it."""
    alive: Any
    """Weak reference that shows whether the memory still belongs to the tensor."""


@dataclass(eq=False)
class Window:
    """A call from its issue to the wait for it."""

    call: Call
    """The call without its tensors."""
    signature: CallSignature
    regions: list[Region]
    sums: list[tuple[StridedView, int, Site]] = field(default_factory=list)
    """Inputs whose memory was handed out: view, checksum at that time, and line."""
    is_on_stream: bool = False
    """Whether the streams that run after the call are known."""
    is_joined: bool = False
    """Whether a stream was made to wait for the call; other streams may not have."""

    def touched(self, view: StridedView, *, writes: bool) -> Region | None:
        """Return the tensor of the call that an access races with, if any."""
        for region in self.regions:
            if (
                (writes or region.is_written)
                and share_bytes(region.view, view)
                and not region.alive.expired()
            ):
                return region
        return None

    def remember(self, view: StridedView, site: Site) -> None:
        """Take checksums of the inputs in this memory, since it may be written unseen."""
        for region in self.regions:
            # The checksum reads one block of memory. Views with gaps would need a copy.
            if not (region.is_written or region.view.dims) and share_bytes(region.view, view):
                self.sums.append((region.view, _checksum(region.view), site))

    def changed(self) -> Iterator[Site]:
        """Yield the lines that handed out the memory of an input that has changed since."""
        for view, before, site in self.sums:
            if _checksum(view) != before:
                yield site


def is_in_place(call: Call, rank: int) -> bool:
    """Whether the call writes its input."""
    return call.op in IN_PLACE and not (call.op == "broadcast" and call.root == rank)


def open_window(call: Call, rank: int) -> Window | None:
    """Return the window of a call that was just issued; None if it uses no visible memory."""
    in_place = is_in_place(call, rank)
    regions = [region for tensor in call.inputs if (region := _region(tensor, is_written=in_place))]
    regions += [region for tensor in call.outputs if (region := _region(tensor, is_written=True))]
    return Window(call.without_tensors(), sign(call), regions) if regions else None


def _region(tensor: torch.Tensor, *, is_written: bool) -> Region | None:
    view = view_of(tensor)
    if view is None:
        return None
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    # The weak reference keeps the address of the storage object from being used again, but not the memory.
    # When it has expired, a new tensor may be at the same place.
    return Region(view, (start, start + storage.nbytes()), is_written, StorageWeakRef(storage))  # type: ignore[no-untyped-call]


def view_of(tensor: Any) -> StridedView | None:
    """Return the bytes of a tensor; None if it has none (fake, sparse, or a wrapper subclass)."""
    try:
        start = tensor.data_ptr()
        if not start:
            return None
        return make_view(start, tensor.element_size(), tensor.shape, tensor.stride())
    except (RuntimeError, NotImplementedError):
        return None


def _checksum(view: StridedView) -> int:
    return zlib.crc32((ctypes.c_char * view.block).from_address(view.start))
