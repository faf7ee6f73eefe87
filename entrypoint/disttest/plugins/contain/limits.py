"""Limits of isolated files, in seconds."""

STARTED_STACKS_S = 2.0
"""Time for all processes that a test has started to answer with their stacks."""
EXECUTORS_END_S = 2.0
"""Time for the workers of executors to end with their process."""
