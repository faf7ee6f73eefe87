"""The process of the command: starts pytest as a child, outlives it, shows the run and writes the reports."""
