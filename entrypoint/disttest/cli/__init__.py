"""The ``disttest`` command, with a module for each subcommand. No other package exits the process."""
