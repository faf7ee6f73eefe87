"""What is seen: one frozen record for each collective, each wait, and each group."""

from __future__ import annotations

import math
from enum import StrEnum
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from disttest.model import short_place

if TYPE_CHECKING:
    import torch

ANY_SOURCE = -1
"""The peer of a receive that takes from whoever sends first."""


class Site(NamedTuple):
    """The innermost line that is neither torch's nor ours."""

    code: CodeType | None
    """None: nobody in Python has called, as in a thread of C++."""
    line: int

    @property
    def file(self) -> str:
        """Its path; empty without Python."""
        return self.code.co_filename if self.code else ""

    @property
    def function(self) -> str:
        """Its function; empty without Python."""
        return self.code.co_name if self.code else ""

    def __str__(self) -> str:
        return short_place(self.file, self.line)


class Spec(NamedTuple):
    """A tensor without its values."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def spec_of(tensor: torch.Tensor) -> Spec:
    """What a tensor is, without its values: ``float32[4, 3]``."""
    return Spec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def as_text(text: str) -> str:
    """As UTF-8 can say it: names of files and words of errors may not be Unicode."""
    return text.encode("utf-8", "backslashreplace").decode()


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group of this process."""

    name: str
    """torch's, the same in all its ranks."""
    description: str
    """``default`` for the default group, else what its maker called it (empty: nothing)."""
    ranks: tuple[int, ...]
    """Ranks of the default group that belong to it, in order of their ranks in this one."""
    backend: str
    timeout_s: float | None
    """How long its calls wait unless they say otherwise; None if torch does not tell."""
    queues: bool = False
    """Whether its calls with tensors of a GPU return when they are in a queue of it, as over NCCL."""
    is_foreign: bool = False
    """Torch does not list it: its members may be processes that are not ranks of the default group."""


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A collective or point-to-point call that this process has issued.

    A struct without garbage collection: tools must not put it into a cycle. It holds the tensors, so whoever keeps it
    longer than the call keeps their memory (:meth:`without_tensors`).
    """

    n: int
    """Its number among all calls of this process, from 1."""
    op: str
    """torch's name without namespace and underscores: ``allreduce``, ``reduce_scatter_base``, ``send``, ``barrier``."""
    group: Group
    seq: int
    """Its number among the collectives that this process has issued in the group, from 1; of a point-to-point call
    among those with the same peer, tag and direction."""
    peer: int | None
    """The other rank (of the default group) of a point-to-point call, :data:`ANY_SOURCE`, or None for a collective."""
    tag: int
    root: int | None
    """The rank (of the default group) that a rooted collective starts from or ends in."""
    reduce_op: str
    """``SUM``, ``MAX``, …; empty where there is none, and where C++ has issued the call, which does not tell."""
    is_async: bool
    """Whether the caller asked for a handle instead of waiting."""
    timeout_s: float | None
    """How long it waits; None if torch does not tell."""
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    """Empty for collectives in place."""
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Rows that it takes from and gives to each rank of the group, of an all_to_all_single; empty: equal parts."""
    site: Site
    thread: int
    """``threading.get_ident()``."""
    by_cpp: bool
    """Issued by C++ (DDP's reducer, functional collectives): nobody in Python holds its handle."""
    in_backward: bool
    """The autograd engine runs in this thread."""
    is_functional: bool = False
    """Issued by a functional collective: a wait for the tensor that it has returned ends it."""
    behind: tuple[str, int] | None = None
    """Of a call in the queue of a GPU: name of the group and number of the last collective that its stream has to come
    through before it; None where there is none, or it is not known."""

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send or a receive."""
        return self.peer is not None

    def read_in(self, rank: int) -> tuple[torch.Tensor, ...]:
        """The inputs whose values a rank hands over; the buffers in which others receive a broadcast are not read."""
        return () if self.op == "broadcast" and self.root != rank else self.inputs

    def without_tensors(self) -> Call:
        """The same, holding no memory."""
        return msgspec.structs.replace(self, inputs=(), outputs=())


class StoreCall(NamedTuple):
    """A call of a store's method from Python."""

    op: str
    """Its name: ``get``, ``compare_set``, …"""
    arguments: tuple[Any, ...]
    """Those by name come last."""
    site: Site
    thread: int
    """``threading.get_ident()``."""


class WaitKind(StrEnum):
    """What a thread waits in; the value is its word in messages."""

    WORK = "work"
    """The handle of a call."""
    TENSOR = "tensor"
    """The result of a functional collective (``wait_tensor``)."""
    FUTURE = "future"
    """A future: of a call, or of anything else."""
    OPERATION = "operation"
    """A call that returns when it is done (``monitored_barrier``)."""
    STORE = "store"
    """Keys of a store."""
    GROUP = "group"
    """A process group that is being made or destroyed."""
    BACKWARD = "backward"
    """The autograd engine, which may wait for calls of C++."""
    DEVICE = "device"
    """A GPU, which has calls in the queue that it has to come through."""


class Wait(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A thread that has begun to wait, or (for ``BACKWARD``) that is in C++ and may."""

    n: int
    """Its number among all waits of this process, from 1."""
    kind: WaitKind
    call: Call | None
    """What it waits for, where that is one call (without its tensors)."""
    keys: tuple[str, ...]
    """Of the store."""
    timeout_s: float | None
    """How long it waits; None if nobody said, or for ever."""
    site: Site
    thread: int
    ranks: tuple[int, ...] = ()
    """Of the default group: the members of a group that is being made."""
    group_name: str = ""
    """torch's name of that group: its number, unless only its members make it."""
    group_description: str = ""
    """As its maker has called it; a dimension of a DeviceMesh is ``mesh_`` and its name."""
    calls: tuple[Call, ...] = ()
    """In the queue of the GPU that is waited for: the last one of each group, without tensors, the newest last."""
    is_public: bool = False
    """Processes that are not ranks can end it, too: they can reach the store."""
    roots: tuple[Any, ...] = ()
    """Of a backward pass: the tensors that it begins with. Keep none of them beyond the wait."""
