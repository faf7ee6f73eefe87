"""The limits of the proof of deadlocks, in seconds."""

STACKS_S = 0.3
"""How long ranks may take to write their stacks, which have to confirm the waits on the board."""
FIRST_PAUSE_S = 1.0
"""Until stacks that did not confirm a deadlock are read again; then twice as long each time."""
TORCH_GROUP_LIMIT_S = 1800.0
"""torch's default limit of a gloo group. A wait that long ends in the same failure; no test waits for it on purpose."""
TORCH_STORE_LIMIT_S = 300.0
"""The same of stores, in which groups are made, too."""
LATE_PEER_S = 2.0
LATE_PEER_POLL_S = 0.001
"""How long a rank that is about to end waits for others that are being connected to it, and how often it looks."""
