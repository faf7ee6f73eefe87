"""Pending calls of a rank, and the memory that each of them uses."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.multiprocessing.reductions import StorageWeakRef

from disttest.extras.sanitizers.order.order_recorder import sign
from disttest.extras.sanitizers.order.stream import CallSignature
from disttest.extras.sanitizers.race.strided_views import StridedView, make_view, share_bytes
from disttest.observe import Call, Site
from disttest.observe.operations import IN_PLACE

if TYPE_CHECKING:
    import torch


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
