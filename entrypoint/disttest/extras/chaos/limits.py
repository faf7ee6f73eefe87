"""Time limits of chaos, in seconds."""

GROUP_S = 2.0
"""Time limit of process groups: how long a rank waits for a silent one. No useful test takes longer in one call."""
SLACK_S = 3.0
"""Time that a test with a fault may take beyond its waits."""
DELAY_S = 0.5
"""Delay of a late rank; well below the time limit of its groups."""
