"""The GitHub actions: their inputs become the command that a step runs.

It imports the plugin `github`, which writes the outputs of a step.
"""
