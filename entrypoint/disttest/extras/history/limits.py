"""Limits of the history."""

LOCK_S = 30.0
"""Time to wait for another process that writes the file. Adding a run of 100,000 tests takes a few seconds."""
GIT_S = 5.0
"""Time for git to name the commit of a run, before the first test. On a slow network file system there is no commit."""
CLOCK_SKEW_S = 86_400.0
"""Time by which the clock of another machine may be ahead of this one."""
OLDEST_S = 946_684_800.0
"""The year 2000. An earlier clock was not set when the run began (1970 after a boot without a battery)."""
REPORTED_RUNS = 50
"""Earlier runs in reports."""
MOST_RETRIES = 100
"""Failed attempts of one test that count in a report of another tool, which may claim any number."""
MESSAGE = 300
"""Characters kept of a failure's message."""
TIMED_RUNS = 60
"""Runs whose durations are read in one query; tests that are not in them are queried one by one."""
