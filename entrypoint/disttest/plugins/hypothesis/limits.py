"""Limits of examples that ranks agree on, in seconds."""

EXAMPLE_AGREED_S = 2.0
"""Time that a rank with a failed example waits for the others, which may wait for it in a collective."""
