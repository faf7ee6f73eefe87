"""The calls of a rank in a test as data: each distinct call once, and their order by number."""

from __future__ import annotations

from disttest.model import Frozen, group_title, short_place
from disttest.observe import Spec

MOST_CALLS = 20_000
"""Calls of one test that are kept."""


class StreamGroup(Frozen):
    """A process group that the rank has used."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def title(self) -> str:
        """Name of the group in messages."""
        return group_title(self.name, self.description, self.ranks)


class CallSignature(Frozen):
    """A call with all of its properties except its position in the order."""

    op: str
    group: StreamGroup
    peer: int | None = None
    """As in :class:`disttest.observe.Call`."""
    tag: int = 0
    root: int | None = None
    reduce_op: str = ""
    """Empty if there is none, or if it is unknown."""
    inputs: tuple[Spec, ...] = ()
    outputs: tuple[Spec, ...] = ()
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """As in :class:`disttest.observe.Call`."""
    file: str = ""
    line: int = 0
    thread: int = 0
    """Number of the thread, in the order of the threads' first calls."""
    batched: bool = False
    """Part of a ``batch_isend_irecv``, within which order does not matter."""
    dropped: bool = False
    """An asynchronous call whose caller discards the handle."""

    @property
    def family(self) -> str:
        """Name shared by operations that do the same with another layout of tensors, and so match each other."""
        return self.op.removesuffix("_base")

    @property
    def is_p2p(self) -> bool:
        """Whether the call is a send or a receive."""
        return self.peer is not None

    @property
    def is_send(self) -> bool:
        """Whether the call is a send."""
        return self.op == "send"

    @property
    def where(self) -> str:
        """Format ``test_step.py:39``; empty if the call did not come from Python."""
        return short_place(self.file, self.line)


class GroupMaking(Frozen):
    """A group that a rank made together with all others, whether as a member or not."""

    number: str
    """torch's name of the group."""
    ranks: tuple[int, ...]
    dimension: str = ""
    """Dimension of a DeviceMesh, such as ``mesh_dp``."""
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """Format ``test_step.py:39``; empty if the call did not come from Python."""
        return short_place(self.file, self.line)


class Stream(Frozen):
    """All calls of one rank in one test."""

    signatures: tuple[CallSignature, ...] = ()
    calls: tuple[int, ...] = ()
    """Indices into ``signatures``, in the order of issue."""
    makings: tuple[GroupMaking, ...] = ()
    beyond: int = 0
    """Number of further calls."""
    doubtful: bool = False
    """Nothing follows from the calls: one of them or a wait raised, which the test may expect, or the default group
    numbers its ranks differently from the world."""
