"""The limits of a run on nodes, in seconds."""

from disttest.limits import EVIDENCE_S, TICK_S

POLL_S = TICK_S
"""A scheduler's module looks at its job so often while nothing happens."""
EVIDENCE_AGREED_S = EVIDENCE_S + 2.0
"""How long ranks that have told what they were doing are kept, for the other nodes to ask theirs."""
NODE_ALIVE_S = 5.0
"""How often an agent says that it lives."""
CLIENT_ALIVE_S = 10.0
"""How often nodes hear that the client lives."""
CLIENT_SILENCE_S = 60.0
"""A client that has said nothing for so long is gone, whatever the scheduler thinks."""
JOB_ARRIVAL_S = 60.0
"""From an agent's start to the job's arrival."""
NODES_READY_S = 300.0
"""From the first word of a node until all have collected; the same until a world is up."""
NODE_OVERRUN_S = 20.0
"""Beyond a test's own limit, for evidence and for the end of its ranks."""
JOB_START_S = 120.0
"""What a job's limit allows for its start: interpreters, collection, torch from a slow file system."""
JOB_LEAST_S = 600.0
"""A job of a few short tests must survive a slow start, too."""
AGENT_CANCEL_S = 5.0
"""How long an agent's work may take to end in an orderly way, when the job is cancelled."""
AGENT_FLUSH_S = 3.0
"""How long an agent's last lines may take to leave."""
JOB_CANCEL_S = AGENT_CANCEL_S + AGENT_FLUSH_S
"""How long the agents of a cancelled run may take to end by themselves; then the scheduler ends them."""
GOODBYE_S = 5.0
"""From the last word of the last node to the scheduler's end of the job.

Longer only when the scheduler's controller is away. All verdicts are there then; its own client (srun) is left
to wait for it.
"""
SCHEDULERS_WORD_S = 20.0
"""The same where the scheduler told a node to end: only it knows why, and that is what is told of the tests."""
PIPE_DRAIN_S = 1.0
"""After its end, a process's pipes may be held open by what it left behind; nobody waits for that longer."""
PORT_PAUSE_S = 1.0
"""Between two looks for a free port of a range."""
