"""The GitHub actions: their inputs become the command that a step runs."""
