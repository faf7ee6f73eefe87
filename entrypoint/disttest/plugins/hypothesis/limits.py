"""The limits of examples that ranks agree on, in seconds."""

EXAMPLE_AGREED_S = 2.0
"""How long a rank in which an example has failed waits for the others, which may wait for it in a collective."""
