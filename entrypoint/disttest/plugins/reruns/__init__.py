"""Runs the tests that failed last time (``--last-failed``), or repeats each until one fails (``--repeat until-fail``)."""
