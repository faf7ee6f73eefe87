"""By which rules a run judges: each a choice of its user."""

from __future__ import annotations

from enum import StrEnum


class VerdictRule(StrEnum):
    """Whose rules judge a test of kind ``main``."""

    STRICT = "strict"
    """Every rank counts."""
    TORCH = "torch"
    """As torch's own harness: after errors, rank 0 alone counts."""


class FlakyRule(StrEnum):
    """How a test counts that passed only on a retry."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
