"""What a rank has seen in a test, as data: each distinct thing and each distinct content once, and their order by number.

This is also the format of a recording (``values.json``, see :mod:`disttest.extras.sanitizers.values.values_file`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from disttest.model import Frozen, short_place

MOST_ENTRIES = 50_000
"""Tensors of one test that are kept."""
NOWHERE = -1
"""Number of the model of parameters that are in none."""


class Role(StrEnum):
    """What a tensor was to the test; the value is its word in messages and recordings."""

    INPUT = "input"
    """What a call was given, when it was issued."""
    OUTPUT = "output"
    """What came of a call, when its wait was over."""
    GIVEN = "given"
    """What a model was given, at its ``forward``."""
    MODULE = "module"
    """What the ``forward`` of a module returned."""
    WRAPPED = "wrapped"
    """A parameter at the first forward of the DistributedDataParallel that it belongs to."""
    ROOT = "root"
    """What a backward pass begins with: a loss, or what a later stage of a pipeline has the gradient of."""
    GRADIENT = "gradient"
    """Of a parameter, before a step."""
    BEFORE = "before"
    """A parameter before the first step."""
    PARAMETER = "parameter"
    """After a step."""
    SHARED = "shared"
    """A parameter of a model of which each rank steps a part and gets the rest from others, at the next forward."""
    BUFFER = "buffer"
    """Of a model in DistributedDataParallel, after a forward in which it was not training."""


class Trust(StrEnum):
    """Why parameters of several ranks are taken for replicas of each other."""

    WRAPPED = "wrapped"
    """They are in one DistributedDataParallel."""
    PLACED = "placed"
    """They are DTensors that are replicated over their whole mesh."""
    REDUCED = "reduced"
    """All of them, or their gradients, were the tensor of one all_reduce or broadcast."""
    BESIDE = "beside"
    """Most others of their optimizer are replicas, or as much as all of them was reduced: only if they began equal."""


class TensorPlace(Frozen):
    """A thing that a rank has seen once or more, with everything that tells it from others but its content."""

    role: Role
    name: str
    """The operation of a call, the path of a module, or of a parameter, in its model."""
    kind: str = ""
    """The reduction of a call, or the class of a module."""
    model: int = 0
    """Models of the rank, numbered as they were used first."""
    group: str = ""
    """Of a call: what its maker called it, or its ranks; its name counts groups, and is another one in the next run."""
    group_id: str = ""
    """torch's name of it, the same in all ranks."""
    ranks: tuple[int, ...] = ()
    """Of the group; of a parameter or buffer, those that should have the same."""
    trust: Trust | None = None
    """Why they should; None where nothing says so."""
    peer: int | None = None
    root: int | None = None
    index: int = 0
    """Among the tensors of one call or module."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """``test_step.py:39``; empty where nobody in Python has called."""
        return short_place(self.file, self.line)


class Content(Frozen):
    """The numbers of a tensor, as far as they are kept."""

    digest: int
    """CRC-32 of all bytes in their order; of several blocks, that of their digests."""
    head: bytes = b""
    """The first bytes: all of a small tensor."""
    blocks: tuple[int, ...] = ()
    """Digests of equal parts of a large tensor, the last one shorter."""
    block: int = 0
    """Bytes of one of them."""
    norm: float | None = None
    """Root of the sum of squares of floating point numbers (of 16 bits: of some thousand of them); None for
    others and where it is not finite."""
    bad: str = ""
    """``nan`` or ``inf``, the first that is among the numbers."""
    bad_at: int = -1
    """Its index."""


class Entry(NamedTuple):
    """One sight of something."""

    place: int
    content: int
    number: int
    """Of the call among those of the test in its group, or how often the same was seen, such as the number of the step;
    from 1."""


class Trace(Frozen):
    """Everything that one rank has seen in one test."""

    places: tuple[TensorPlace, ...] = ()
    contents: tuple[Content, ...] = ()
    entries: tuple[Entry, ...] = ()
    """In the order of sight; the numbers are indices of the above."""
    beyond: int = 0
    """How many more there were."""
    doubtful: bool = False
    """Nothing follows from a comparison of ranks: a call or a wait has raised, which its test may have meant, or the
    default group numbers its ranks otherwise than their world."""
