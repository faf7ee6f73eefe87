"""Base class and number types of all data, and the version of the formats."""

from __future__ import annotations

from typing import Annotated, dataclass_transform

import msgspec

# Besides its own error, msgspec raises these for a text that is not UTF-8 and for a nesting that is too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding data from another process."""

# A journal may come from anywhere. A number out of bounds makes its line unreadable, so that no report has to
# check it.
Moment = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
"""Seconds since the epoch, up to the year 5138; values outside are not times, and must not enter calculations."""
Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""A duration, or a time by the clock of a rank, which its test may have set."""
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A number of things that stays below a million in any run."""
Code = Annotated[int, msgspec.Meta(ge=0, le=255)]
"""An exit code; the shell would truncate a larger one."""

# A new field with a default needs no new version: msgspec ignores fields that a type does not have.
SCHEMA_VERSION = 1
"""Version of the journal and of ``results.json``; increased when an old reader would misread new files."""


# Type checkers do not see that msgspec passes these keywords on to subclasses.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all data types.

    Frozen data built from the inside out cannot contain a cycle, so the garbage collector need not track it: a run of
    100,000 tests has nearly a million of these objects.
    """
