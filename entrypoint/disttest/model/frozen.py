"""What all data types are made of: their base, their numbers, the version of what is written."""

from __future__ import annotations

from typing import Annotated, dataclass_transform

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding can raise where the data come from somebody else."""

Moment = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
"""Seconds since the epoch, up to the year 5138. What is outside is no time, and calculating with it means nothing."""
Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""A duration, or a time by the clock of a rank, which its test may have set."""
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A number of things of which a run cannot have a million."""
Code = Annotated[int, msgspec.Meta(ge=0, le=255)]
"""An exit code; a larger one would become another one on the way to the shell."""

SCHEMA_VERSION = 1
"""Version of the journal and of ``results.json``; raised when an old reader would misread the new."""


# Type checkers do not see that msgspec hands these keywords on to subclasses.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all data types.

    Frozen data built from the inside out can hold no cycle, so the collector need not look for one: a run of 100,000
    tests is most of a million of these.
    """
