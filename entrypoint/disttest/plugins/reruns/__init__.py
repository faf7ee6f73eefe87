"""Runs again the tests that failed last time (``--last-failed``), or each test until one fails (``--repeat until-fail``)."""
