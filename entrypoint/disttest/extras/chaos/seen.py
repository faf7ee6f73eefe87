"""Observations of a test that the tool in a rank reports."""

from __future__ import annotations

import msgspec

from disttest.extras.chaos.case import BaselineCall
from disttest.model import Frozen


class SeenError(Frozen):
    """A call or a wait that raised."""

    what: str
    """Such as ``all_reduce at test_step.py:12``."""
    text: str
    """The exception in one line, its class first."""
    began_s: float
    """When the rank began to wait, on the monotonic clock, which all processes of a machine share."""
    ended_s: float


class ChaosSeen(Frozen):
    """Observations of one rank in one test."""

    handed: int = 0
    """Number of calls handed to the backend."""
    calls: tuple[BaselineCall, ...] = ()
    errors: tuple[SeenError, ...] = ()
    raised: tuple[str, ...] = ()
    """Class and message of the exceptions that the test raised, the last first."""
    numbers: dict[str, str] = msgspec.field(default_factory=dict)
