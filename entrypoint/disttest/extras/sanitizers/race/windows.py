"""The calls of a rank that are pending, and the memory that each of them uses."""

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
    """Its addresses, from and to behind."""
    is_written: bool
    """By the call."""
    alive: Any
    """Tells whether the memory is still this tensor's."""


@dataclass(eq=False)
class Window:
    """A call from its issue to the wait for it."""

    call: Call
    """Without its tensors."""
    signature: CallSignature
    regions: list[Region]
    sums: list[tuple[StridedView, int, Site]] = field(default_factory=list)
    """Inputs whose memory was handed out: their checksums then, and where it was."""
    is_on_stream: bool = False
    """It is known which streams of its GPU come after it."""
    is_joined: bool = False
    """A stream was made to wait for it; others may not come after it yet."""

    def touched(self, view: StridedView, *, writes: bool) -> Region | None:
        """The tensor of the call that such an access races with."""
        for region in self.regions:
            if (
                (writes or region.is_written)
                and share_bytes(region.view, view)
                and not region.alive.expired()
            ):
                return region
        return None

    def remember(self, view: StridedView, site: Site) -> None:
        """Somebody may write to this memory unseen: take the checksums of the inputs that lie there."""
        for region in self.regions:
            if not (region.is_written or region.view.dims) and share_bytes(region.view, view):
                self.sums.append((region.view, _checksum(region.view), site))

    def changed(self) -> Iterator[Site]:
        """Where the memory of an input was handed out that is not what it was."""
        for view, before, site in self.sums:
            if _checksum(view) != before:
                yield site


def is_in_place(call: Call, rank: int) -> bool:
    """Whether it writes what it reads."""
    return call.op in IN_PLACE and not (call.op == "broadcast" and call.root == rank)


def open_window(call: Call, rank: int) -> Window | None:
    """The window of a call that has just been issued; None if it uses no memory of ours."""
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
    """The bytes of a tensor; None where it has none of its own (fake, sparse, a subclass that wraps others)."""
    try:
        start = tensor.data_ptr()
        if not start:
            return None
        return make_view(start, tensor.element_size(), tensor.shape, tensor.stride())
    except (RuntimeError, NotImplementedError):
        return None


def _checksum(view: StridedView) -> int:
    return zlib.crc32((ctypes.c_char * view.block).from_address(view.start))
