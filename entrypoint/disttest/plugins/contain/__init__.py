"""Runs tests without a world in a process for each file (``--contain``), and forks what they spawn (``--fast-spawn``)."""
