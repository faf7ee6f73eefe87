"""Records of observations: one frozen struct for each collective, each wait, and each group."""

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
"""The peer of a receive that accepts the first sender."""


class Site(NamedTuple):
    """The innermost line of code that belongs neither to torch nor to disttest."""

    code: CodeType | None
    """None if no Python code made the call, as in a thread of C++."""
    line: int

    @property
    def file(self) -> str:
        """Path of the file; empty without Python."""
        return self.code.co_filename if self.code else ""

    @property
    def function(self) -> str:
        """Name of the function; empty without Python."""
        return self.code.co_name if self.code else ""

    def __str__(self) -> str:
        return short_place(self.file, self.line)


class Spec(NamedTuple):
    """A tensor without its values."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def spec_of(tensor: torch.Tensor) -> Spec:
    """Describe a tensor without its values: ``float32[4, 3]``."""
    return Spec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def as_text(text: str) -> str:
    """Escape text for UTF-8: names of files and messages of errors may not be Unicode."""
    return text.encode("utf-8", "backslashreplace").decode()


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group of this process."""

    name: str
    """torch's name, the same in all its ranks."""
    description: str
    """``default`` for the default group, otherwise the description given by its creator, or empty."""
    ranks: tuple[int, ...]
    """Its ranks in the default group, in order of their ranks in this one."""
    backend: str
    timeout_s: float | None
    """Default time limit of its calls; None if torch does not report it."""
    queues: bool = False
    """Whether its calls with GPU tensors return once they are queued, as over NCCL."""
    is_foreign: bool = False
    """Whether torch does not list it, so that members may be processes other than ranks of the default group."""


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A collective or point-to-point call that this process has issued.

    The struct has no garbage collection, so tools must not put it into a cycle. It holds the tensors; keeping it
    longer than the call keeps their memory (:meth:`without_tensors`).
    """

    n: int
    """Number among all calls of this process, from 1."""
    op: str
    """torch's name without namespace and underscores: ``allreduce``, ``reduce_scatter_base``, ``send``, ``barrier``."""
    group: Group
    seq: int
    """Number among the collectives that this process issued in the group, from 1; for a point-to-point call, among
    those with the same peer, tag and direction.
    """
    peer: int | None
    """The other rank (of the default group) of a point-to-point call, :data:`ANY_SOURCE`, or None for a collective."""
    tag: int
    root: int | None
    """The rank (of the default group) that is the root of a rooted collective."""
    reduce_op: str
    """``SUM``, ``MAX``, …; empty without a reduction, and for calls of C++, which do not report it."""
    is_async: bool
    """Whether the caller asked for a handle instead of waiting."""
    timeout_s: float | None
    """Time limit; None if torch does not report it."""
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    """Empty for collectives in place."""
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Rows of an all_to_all_single received from and sent to each rank of the group; empty means equal parts."""
    site: Site
    thread: int
    """``threading.get_ident()``."""
    by_cpp: bool
    """Whether C++ issued it (DDP's reducer, functional collectives), so that no Python code holds its handle."""
    in_backward: bool
    """Whether the autograd engine runs in this thread."""
    is_functional: bool = False
    """Whether a functional collective issued it. A wait for the returned tensor completes it."""
    behind: tuple[str, int] | None = None
    """For a call in a GPU's queue: group and number of the last collective that its stream must complete before it;
    None if there is none or it is unknown.
    """

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send or a receive."""
        return self.peer is not None

    def read_in(self, rank: int) -> tuple[torch.Tensor, ...]:
        """Return the inputs whose values a rank sends. The buffers that receive a broadcast are not read."""
        return () if self.op == "broadcast" and self.root != rank else self.inputs

    def without_tensors(self) -> Call:
        """Return the call without references to tensors."""
        return msgspec.structs.replace(self, inputs=(), outputs=())


class StoreCall(NamedTuple):
    """A call of a store's method from Python."""

    op: str
    """Name of the method: ``get``, ``compare_set``, …"""
    arguments: tuple[Any, ...]
    """All arguments; keyword arguments are last."""
    site: Site
    thread: int
    """``threading.get_ident()``."""


class WaitKind(StrEnum):
    """The kind of a wait. The value is the word in messages."""

    WORK = "work"
    """The handle of a call."""
    TENSOR = "tensor"
    """The result of a functional collective (``wait_tensor``)."""
    FUTURE = "future"
    """A future of a call, or of anything else."""
    OPERATION = "operation"
    """A call that returns when it is done (``monitored_barrier``)."""
    STORE = "store"
    """Keys of a store."""
    GROUP = "group"
    """A process group that is being created or destroyed."""
    BACKWARD = "backward"
    """The autograd engine, which may wait for calls of C++."""
    DEVICE = "device"
    """A GPU with calls in its queue."""


class Wait(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A thread that has begun to wait, or (for ``BACKWARD``) that is in C++ and may wait."""

    n: int
    """Number among all waits of this process, from 1."""
    kind: WaitKind
    call: Call | None
    """The awaited call, if it is a single one, without its tensors."""
    keys: tuple[str, ...]
    """Keys of the store."""
    timeout_s: float | None
    """Time limit; None if there is none or it is unknown."""
    site: Site
    thread: int
    ranks: tuple[int, ...] = ()
    """Ranks of the default group that are members of a group under construction."""
    group_name: str = ""
    """torch's name of that group: its number, unless only its members create it."""
    group_description: str = ""
    """Description given by its creator. A dimension of a DeviceMesh is ``mesh_`` and its name."""
    calls: tuple[Call, ...] = ()
    """Calls in the queue of the awaited GPU: the last one of each group, without tensors, newest last."""
    is_public: bool = False
    """Whether processes other than ranks can reach the store and so end the wait."""
    roots: tuple[Any, ...] = ()
    """Tensors that a backward pass begins with. Do not keep them beyond the wait."""
