"""Time limits of a run on nodes, in seconds."""

from disttest.limits import EVIDENCE_S, TICK_S

POLL_S = TICK_S
"""Interval at which a scheduler's module polls its job."""
EVIDENCE_AGREED_S = EVIDENCE_S + 2.0
"""Time for which ranks are kept after their evidence was taken, until the other nodes have theirs."""
NODE_ALIVE_S = 5.0
"""Interval at which an agent reports that it is alive."""
CLIENT_ALIVE_S = 10.0
"""Interval at which the client reports to the nodes that it is alive."""
CLIENT_SILENCE_S = 60.0
"""Silence after which a client counts as gone, whatever the scheduler reports."""
CLIENT_STEP_S = 1.0
"""Most that the time between two looks of a client at its job counts for the limits of the nodes.

After a longer time, the client itself was stopped, and words of all nodes wait to be read.
"""
JOB_ARRIVAL_S = 60.0
"""Time from the start of an agent to the arrival of the job."""
NODES_READY_S = 300.0
"""Time from the first message of a node until all have collected, and until a world is up."""
NODE_OVERRUN_S = 20.0
"""Time beyond a test's own limit, for evidence and for the end of its ranks."""
JOB_START_S = 120.0
"""Allowance of a job's limit for its start: interpreters, collection, torch from a slow file system."""
JOB_LEAST_S = 600.0
"""Least limit of a job: one with a few short tests must survive a slow start, too."""
AGENT_CANCEL_S = 5.0
"""Time for an agent's work to end cleanly when the job is cancelled."""
AGENT_FLUSH_S = 3.0
"""Time for an agent's last lines to be sent."""
JOB_CANCEL_S = AGENT_CANCEL_S + AGENT_FLUSH_S
"""Time for the agents of a cancelled run to end, before the scheduler ends them."""
GOODBYE_S = 5.0
"""Time from the last message of the last node to the scheduler's end of the job.

It is exceeded only if the controller of the scheduler is away. All verdicts are known then, and srun is left running:
ending it would leave the allocation without an owner.
"""
SCHEDULERS_WORD_S = 20.0
"""The same if the scheduler asked a node to end: only the scheduler knows the reason, which the verdicts need."""
AGENT_GONE_S = 2.0
"""Time for the last lines of an agent to arrive, after the scheduler has reported its end."""
PIPE_DRAIN_S = 1.0
"""Time for which a process's pipes are read after its end, since processes it left behind may hold them open."""
PORT_PAUSE_S = 1.0
"""Pause between attempts to find a free port in a range."""
