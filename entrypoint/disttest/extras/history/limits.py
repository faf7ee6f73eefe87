"""The limits of the history."""

LOCK_S = 30.0
"""How long a command waits for another one that writes the file. Adding a run of 100,000 tests takes a few seconds."""
GIT_S = 5.0
"""How long git may take to name the commit of a run, before the first test. A slow network file system gets no commit."""
CLOCK_SKEW_S = 86_400.0
"""How far ahead of this machine the clock of another one may be."""
OLDEST_S = 946_684_800.0
"""The year 2000. A clock that says less was not set when the run began (1970 after a boot without a battery)."""
REPORTED_RUNS = 50
"""Earlier runs that reports show."""
MESSAGE = 300
"""Characters of a failure's message that are kept."""
TIMED_RUNS = 60
"""Runs whose durations are read at once; tests that are not in them are looked up one by one."""
