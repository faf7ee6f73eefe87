"""The limits of isolated files, in seconds."""

STARTED_STACKS_S = 2.0
"""How long the processes that a test has started may take to answer with their stacks, all together."""
