"""The option ``--deadlock``."""

from __future__ import annotations

from enum import StrEnum

from disttest.options.option import of_every_run
from disttest.options.values import member_of


class DeadlockRule(StrEnum):
    """Treatment of a test whose ranks provably wait for each other."""

    FAIL = "fail"
    """It ends immediately, as a hang."""
    REPORT = "report"
    """It continues to its time limit, with a note."""
    OFF = "off"
    """No watch looks for deadlocks."""


DEADLOCK = of_every_run(
    "deadlock",
    member_of(DeadlockRule),
    "A test in which no rank can continue: fail immediately, report it and wait for the limit, or do not check (off).",
    default=DeadlockRule.FAIL,
    repeated=True,
)
