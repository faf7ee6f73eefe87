"""Kinds of findings of the sanitizer ``values``."""

from __future__ import annotations

from enum import StrEnum


class ValueFindingKind(StrEnum):
    """Kind of a finding; the value is its word in results and reports."""

    OUTPUT = "output"
    """A collective that gives all ranks the same result gave them different numbers."""
    PARAMETER = "parameter"
    """Parameters that should be replicas of each other differ."""
    BUFFER = "buffer"
    """A model in DistributedDataParallel was evaluated with different buffers on the ranks."""
    NONFINITE = "nonfinite"
    """NaN or infinity got into parameters, or into the result of a reduction."""
