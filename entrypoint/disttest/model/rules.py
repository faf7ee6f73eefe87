"""Rules of a verdict that the user chooses."""

from __future__ import annotations

from enum import StrEnum


class VerdictRule(StrEnum):
    """The rules that judge a test of kind ``main``."""

    STRICT = "strict"
    """Every rank counts."""
    TORCH = "torch"
    """As in torch's own harness: after errors, only rank 0 counts."""


class FlakyRule(StrEnum):
    """The treatment of a test that passed only on a retry."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
