"""Limits of runs with ``--changed``."""

GIT_S = 60.0
"""Time for one command of git. A comparison reads every file of the project whose time stamp changed."""
LOCK_S = 30.0
"""Time to wait for another process that writes the record."""
# flock(2) has no time limit, so the lock is tried again and again.
POLL_S = 0.05
"""Interval at which that is tried."""
MISSES = 100
"""Failed canaries kept in the record."""
REPORTED_TESTS = 20
"""Selected tests that a report names."""
