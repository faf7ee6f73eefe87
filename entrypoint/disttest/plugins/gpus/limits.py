"""Limits of work with GPUs, in seconds."""

# --- leases
LEASE_POLL_S = 0.01
# The first run in the queue polls often, the others less often.
LEASE_LONGEST_POLL_S = 0.1
"""Polling intervals of GPU leases: flock cannot wait for one of several locks."""
LEASE_WAIT_S = 3600.0
"""Longest time that a run waits for its GPUs, unless its deadline is earlier."""
LEASE_FRESH_S = 1.0
"""Greatest age of the driver's answers when GPUs are locked: a GPU that was free before the wait may be in use now."""
LEASE_LOOK_S = 2.0
"""The same for a first choice, which is checked again once it is locked."""

# --- health
DEVICE_POLL_S = 0.1
"""Interval at which the driver is asked which processes hold a GPU."""
GPU_RELEASE_S = 10.0
"""A GPU that a process still holds this long after its world has ended is not used again."""
GPU_SLOW_RELEASE_S = 1.0
"""A release that takes longer than this is worth a note."""
GPU_PROOF_WAIT_S = 5.0
"""Time that a preflight waits for the worlds on its GPUs. After it the preflight leaves out the busy ones."""

# --- shared GPUs
MPS_START_S = 10.0
"""Time for the MPS daemon of a run to answer after its start. A healthy one answers within 0.1 s."""
MPS_POLL_S = 0.02
"""How often an MPS daemon that starts or ends is looked at. A real one answered after 0.035 s on an H200."""
MPS_ANSWER_S = 5.0
"""Bound on one command to an MPS daemon, whose server may be wedged."""

# --- the driver
DRIVER_STALL_S = 15.0
"""Silence allowed for the first question to the driver. Loading it takes seconds per GPU without persistence mode."""
DRIVER_TOTAL_S = 60.0
"""Time for all questions about a machine together, and for torch's import before its own."""

# --- the preflight
PREFLIGHT_START_S = 90.0
"""Time to import torch on a cold disk and a busy machine."""
PREFLIGHT_CHECK_S = 20.0
"""Time for one check of one device or pair."""
PREFLIGHT_COLLECTIVE_S = 30.0
"""Time for one collective. The first one sets up all connections."""
PREFLIGHT_COLLECTIVE_MARGIN_S = 5.0
"""Added to torch's own time-out, whose message is more informative than a kill."""
PREFLIGHT_GRACE_S = 2.0
"""Time for the other ranks to report after one has failed."""
PREFLIGHT_TOTAL_S = 300.0
"""Time for all checks of a machine."""
PREFLIGHT_MARGIN_S = 30.0
"""The preflight enforces its own limit. The controller ends it this much later, if the preflight is stuck."""
