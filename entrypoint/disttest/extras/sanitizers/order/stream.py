"""What a rank has called in a test, as data: each distinct call once, and the order of all by number."""

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
        """How messages name it."""
        return group_title(self.name, self.description, self.ranks)


class CallSignature(Frozen):
    """A call, with everything that tells it from others but its place in the order."""

    op: str
    group: StreamGroup
    peer: int | None = None
    """As in :class:`disttest.observe.Call`."""
    tag: int = 0
    root: int | None = None
    reduce_op: str = ""
    """Empty: none, or not known."""
    inputs: tuple[Spec, ...] = ()
    outputs: tuple[Spec, ...] = ()
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """As in :class:`disttest.observe.Call`."""
    file: str = ""
    line: int = 0
    thread: int = 0
    """Threads of the rank, numbered as they called first."""
    batched: bool = False
    """Part of a ``batch_isend_irecv``, within which order does not matter."""
    dropped: bool = False
    """An asynchronous call whose handle its caller has thrown away."""

    @property
    def family(self) -> str:
        """Operations that do the same, with another layout of their tensors, and meet each other on every backend."""
        return self.op.removesuffix("_base")

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send or a receive."""
        return self.peer is not None

    @property
    def is_send(self) -> bool:
        """Whether it is a send."""
        return self.op == "send"

    @property
    def where(self) -> str:
        """``test_step.py:39``; empty where nobody in Python has called."""
        return short_place(self.file, self.line)


class GroupMaking(Frozen):
    """A group that a rank has made with all others, as a member or not."""

    number: str
    """torch's name of it."""
    ranks: tuple[int, ...]
    dimension: str = ""
    """Of a DeviceMesh, as ``mesh_dp``."""
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """``test_step.py:39``; empty where Python has not called."""
        return short_place(self.file, self.line)


class Stream(Frozen):
    """All calls of one rank in one test."""

    signatures: tuple[CallSignature, ...] = ()
    calls: tuple[int, ...] = ()
    """Each an index of ``signatures``, in the order of issue."""
    makings: tuple[GroupMaking, ...] = ()
    beyond: int = 0
    """How many more there were."""
    doubtful: bool = False
    """Nothing follows from it: a call or a wait has raised, which its test may have meant, or the default group numbers
    its ranks otherwise than their world."""
