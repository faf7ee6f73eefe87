"""The registry of options, from which flags, variables, the action's inputs and the docs are made."""
