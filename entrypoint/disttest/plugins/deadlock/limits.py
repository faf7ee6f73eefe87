"""Limits of the proof of deadlocks, in seconds."""

STACKS_S = 0.3
"""Time for the next rank to write its stacks, which must confirm the waits on the board."""
FIRST_PAUSE_S = 1.0
"""Pause before stacks that did not confirm a deadlock are read again; doubled each time."""
TORCH_GROUP_LIMIT_S = 1800.0
"""torch's default limit of a gloo group. A longer wait has the same result; no test waits that long on purpose."""
TORCH_STORE_LIMIT_S = 300.0
"""torch's default limit of stores, which also applies to the creation of groups."""
LATE_PEER_S = 2.0
LATE_PEER_POLL_S = 0.001
"""Time that a rank waits before it exits for others that are connecting to it, and polling interval."""
