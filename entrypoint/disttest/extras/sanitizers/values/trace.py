"""Observations of a rank in a test as data: each distinct thing and content once, and their order by number.

This is also the format of a recording (``values.json``, see :mod:`disttest.extras.sanitizers.values.values_file`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from disttest.model import Frozen, short_place

MOST_ENTRIES = 50_000
"""Tensors of one test that are kept."""
NOWHERE = -1
"""Model number of parameters that belong to no model."""


class Role(StrEnum):
    """Role of a tensor in the test; the value is its word in messages and recordings."""

    INPUT = "input"
    """Input of a call when it is issued."""
    OUTPUT = "output"
    """Output of a call when the wait for it is over."""
    GIVEN = "given"
    """Input of a model's ``forward``."""
    MODULE = "module"
    """Output of a module's ``forward``."""
    WRAPPED = "wrapped"
    """A parameter at the first forward of its DistributedDataParallel."""
    ROOT = "root"
    """Root of a backward pass: a loss, or an output whose gradient comes from a later pipeline stage."""
    GRADIENT = "gradient"
    """Gradient of a parameter before a step."""
    BEFORE = "before"
    """A parameter before the first step."""
    PARAMETER = "parameter"
    """A parameter after a step."""
    SHARED = "shared"
    """A parameter, at the next forward, of a model of which each rank steps a part and gets the rest from others."""
    BUFFER = "buffer"
    """Buffer of a model in DistributedDataParallel, after a forward in evaluation mode."""


class Trust(StrEnum):
    """Evidence that parameters of several ranks are replicas of each other."""

    WRAPPED = "wrapped"
    """They are in one DistributedDataParallel."""
    PLACED = "placed"
    """They are DTensors that are replicated over their whole mesh."""
    REDUCED = "reduced"
    """All of them, or their gradients, were the tensor of one all_reduce or broadcast."""
    BESIDE = "beside"
    """Most others of their optimizer are replicas, or as much as all of them was reduced. Counts only if they began
    equal."""


class TensorPlace(Frozen):
    """A thing that a rank observes, with all of its properties except the content."""

    role: Role
    name: str
    """Operation of a call, or path of a module or parameter in its model."""
    kind: str = ""
    """Reduction of a call, or class of a module."""
    model: int = 0
    """Number of the model, in the order of first use."""
    group: str = ""
    """Description of a call's group, or its ranks. The group's name is a count, which differs in the next run."""
    group_id: str = ""
    """torch's name of the group, the same in all ranks."""
    ranks: tuple[int, ...] = ()
    """Ranks of the group; of a parameter or buffer, the ranks that should have the same."""
    trust: Trust | None = None
    """Evidence for that; None without any."""
    peer: int | None = None
    root: int | None = None
    index: int = 0
    """Index among the tensors of one call or module."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """Format ``test_step.py:39``; empty if it did not come from Python."""
        return short_place(self.file, self.line)


class Content(Frozen):
    """Numbers of a tensor, as far as they are kept."""

    digest: int
    """CRC-32 of all bytes in order; of several blocks, the CRC-32 of their digests."""
    head: bytes = b""
    """First bytes: all of a small tensor."""
    blocks: tuple[int, ...] = ()
    """Digests of equal parts of a large tensor; the last part is shorter."""
    block: int = 0
    """Bytes of a part."""
    norm: float | None = None
    """Root of the sum of squares of floating-point numbers (16 bits: of a sample of some thousand); None for other
    types, and if it is not finite."""
    bad: str = ""
    """``nan`` or ``inf``: the first that occurs."""
    bad_at: int = -1
    """Its index."""


class Entry(NamedTuple):
    """One observation."""

    place: int
    content: int
    number: int
    """Number from 1 of the call among the test's calls in its group, or of the same observation, such as the step."""


class Trace(Frozen):
    """All observations of one rank in one test."""

    places: tuple[TensorPlace, ...] = ()
    contents: tuple[Content, ...] = ()
    entries: tuple[Entry, ...] = ()
    """Observations in order; the numbers are indices into the above."""
    beyond: int = 0
    """Number of further observations."""
    doubtful: bool = False
    """Nothing follows from a comparison of ranks: a call or a wait raised, which the test may expect, or the default
    group numbers its ranks differently from the world."""
