"""Limits of the watch over shared memory, in seconds."""

LATER_LITTER_S = 1.0
"""A killed world may live on for this long after its verdict."""
SHM_OPENED_S = 1.0
"""A maker opens its file in shared memory right after the kernel has reported it, unless something else runs first."""
