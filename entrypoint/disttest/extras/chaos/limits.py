"""The limits of chaos, in seconds."""

GROUP_S = 2.0
"""Time limit of process groups: how long a rank waits for a silent one. No test that is worth it takes longer in one call."""
SLACK_S = 3.0
"""How much longer than its waits a harmed test may take."""
DELAY_S = 0.5
"""How late a rank is that comes late; well below the limit of its groups."""
