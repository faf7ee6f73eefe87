"""The kinds of findings of the sanitizer of values."""

from __future__ import annotations

from enum import StrEnum


class ValueFindingKind(StrEnum):
    """What was found; the value is its word in results and reports."""

    OUTPUT = "output"
    """A collective that gives all its ranks the same has given them different numbers."""
    PARAMETER = "parameter"
    """Parameters that should be replicas of each other are not."""
    BUFFER = "buffer"
    """A model in DistributedDataParallel was evaluated with other buffers on each rank."""
    NONFINITE = "nonfinite"
    """NaN or infinity has got into parameters, or into what a reduction gave all ranks."""
