"""What the tool in a rank reports of a test."""

from __future__ import annotations

import msgspec

from disttest.extras.chaos.case import UnharmedCall
from disttest.model import Frozen


class SeenError(Frozen):
    """A call or a wait that has raised."""

    what: str
    """``all_reduce at test_step.py:12``."""
    text: str
    """The exception in one line, its class first."""
    began_s: float
    """When the rank began to wait; monotonic clock, which all processes of a machine share."""
    ended_s: float


class ChaosSeen(Frozen):
    """A rank in one test."""

    handed: int = 0
    """Calls that its backend was given."""
    calls: tuple[UnharmedCall, ...] = ()
    errors: tuple[SeenError, ...] = ()
    raised: tuple[str, ...] = ()
    """What the test raised, each exception after the one in whose handling it was raised: class and message."""
    numbers: dict[str, str] = msgspec.field(default_factory=dict)
