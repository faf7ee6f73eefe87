"""Runs tests without a world in a process for each file (``--isolate-files``), and forks what they spawn."""
