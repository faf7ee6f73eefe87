"""Hides the variables of a launcher, inside of which the command runs, from tests: they make no rank of a test process."""
