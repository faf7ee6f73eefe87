"""The ``disttest`` command: a module for each subcommand. The only place that leaves the process."""
