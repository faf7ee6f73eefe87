"""The ``disttest`` command. No other package exits the process."""
