"""Every limit, grace and interval that decides something, in seconds; ``tests/unit/test_limits.py`` holds their order.

A supervisor must wait longer than what it supervises, else it kills somebody who was just ending in order, and evidence
and reports go with it. Defaults that a user can set are in the registry of options.
"""

# --- how often a loop that waits for events looks at the clock as well

TICK_S = 0.2
"""Journals that grow, logs that are cut, deadlines: seen this late at most."""
IDLE_S = 1.0
"""The same where nothing but time can have changed."""
SPARE_LOOK_S = 0.25
"""Between two looks at how idle the processors are; worlds come and go in between."""
LEASE_POLL_S = 0.01
LEASE_LONGEST_POLL_S = 0.1
"""flock cannot wait for one of several locks: the head of the line looks often, the others seldom."""
EVIDENCE_POLL_S = 0.01
"""An answer is a file that grows."""
SETTLED_SOURCE_S = 2.0
"""After a source was saved; its kept byte code says when, in whole seconds."""
REAPER_POLL_S = 0.1
"""Whose process carries a mark is read from all of ``/proc``."""
DEVICE_POLL_S = 0.1
"""The driver is asked again who holds a GPU."""

# --- the end of a process

KILL_S = 2.0
"""From SIGKILL to the end; a loaded machine needs a while to free the memory. What lives on is stuck in the kernel."""
BOUNDED_KILL_S = 3.0
"""The same for a process that talks to a driver, which has more to give back."""
RANK_TERM_S = 0.1
"""Between TERM and KILL of a rank, whose test may have set no handler or a bad one."""
WORLD_TERM_S = 0.5
"""The same of a world, which kills its ranks meanwhile."""
PYTEST_LEAVE_S = 5.0
"""How long pytest may take to end once it is done: a thread or an exit handler of a test may keep it for ever."""
PYTEST_TERM_S = 0.2
"""The same of pytest, which has not heard SIGINT."""
RANK_EXIT_S = 2.0
"""From the end of a rank's channel to the end of its process."""
RANKS_LEAVE_S = 5.0
"""How long the ranks of a healthy world may take to tear down and end."""
BROKEN_LEAVE_S = 1.0
"""The same of a world that saw a failure: its ranks may wait for each other in vain."""

# --- an attempt

EVIDENCE_S = 0.6
"""How long ranks may take to tell what they were doing; most need a few milliseconds, some cannot answer."""
ORPHANS_S = 6.0
"""How long helpers of a killed rank may take to notice; a worker of torch's DataLoader looks every 5 seconds."""
NATIVE_STACKS_S = 2.0
"""For all ranks together; torch's libraries take half a second."""
MAIN_MARGIN_S = 3.0
"""A main process ends its ranks at the test's deadline; this long for it to do so and to report."""
MAIN_CANCEL_S = 1.2
"""The same when the run is cancelled, and everybody is in a hurry."""
CONSEQUENCE_WAIT_S = 3.0
"""How long the others have after a rank has lost a peer: the one that it has lost may be cleaning up before it fails."""
RENDERING_S = 10.0
"""How long a rank may take to render the report of a failure: what it shows calls ``repr()`` of the test's objects."""
RENDERING_LEAST_S = 2.0
"""The same at least, for an ordinary test that has used up its own limit."""
RENDERING_NEXT_S = 1.0
"""How long each further value may take to render when the limit has passed."""
PHASE_TOLD_S = 0.05
"""A phase that took longer is told at once: should a later one never end, it is known what came before."""

NO_LIMIT_S = 20 * 24 * 3600.0
"""A test without a limit: as long as the kernel can be asked to wait at once."""

# --- a world

COLLECT_S = 300.0
"""How long a clean process may take to collect the files of a run once more."""
THREAD_REST_S = 0.25
"""How long a thread may take to come to rest before forking counts as unsafe: a pool spins a little before it waits."""
WORLD_START_S = 120.0
"""Fresh interpreters that import torch from a slow file system, all at once."""
WORLD_SILENCE_S = 30.0
"""How much longer than its tests may take a world may say nothing: it has been stopped, or is stuck."""
LATER_LITTER_S = 1.0
"""A killed world may live on for a moment after its verdict."""
RETRY_FIRST_PAUSE_S = 0.5
RETRY_LONGEST_PAUSE_S = 30.0
"""Between attempts that a machine has spoiled: about half a second, then twice as long each time, up to this."""

# --- the end of a run, from the inside out: GitHub sends SIGINT, 7.5 s later SIGTERM, 2.5 s later SIGKILL

WORLD_POOL_CANCEL_S = 2.5
"""How long worlds may take to end in an orderly way when the run is cancelled."""
SUPERVISOR_CANCEL_S = 3.5
"""How long pytest may take to stop in an orderly way; then come its kill and the reports."""
REAPER_ORDERLY_S = 6.0
"""How long worlds whose command and controller were killed may take to end what is theirs."""
REFUSAL_S = 2.0
"""Before the run's deadline: a run that gets no GPU stops waiting, so that it has time to say who holds them."""
DEADLINE_MARGIN_S = 5.0
"""The controller keeps the run's deadline itself; only if it is stuck does the supervisor step in, this much later."""
OUTPUT_STALL_S = 60.0
"""A reader that takes nothing for so long is not there."""

KEPT_LOGS_S = 7 * 24 * 3600.0
"""How long the logs of a run with failures stay that was given no results directory."""

# --- GPUs

LEASE_WAIT_S = 3600.0
"""How long a run waits for its GPUs, unless its deadline comes first."""
LEASE_FRESH_S = 1.0
"""A picture of the machine older than this is not trusted when GPUs are taken."""
LEASE_LOOK_S = 2.0
"""The same for a first choice, which is looked at again once it is locked."""
GPU_RELEASE_S = 10.0
"""A GPU that somebody still holds this long after its world has ended is not used again."""
GPU_SLOW_RELEASE_S = 1.0
"""One that takes longer than this is worth a note."""
GPU_PROOF_WAIT_S = 5.0
"""How long a proof waits for the worlds on its GPUs; after that it goes without those that are busy."""
MPS_START_S = 10.0
"""Time for the MPS daemon of a run to answer after it was started. A healthy one answers within 0.1 s."""
MPS_POLL_S = 0.02
"""How often an MPS daemon that starts or ends is looked at. A real one answered after 0.035 s on an H200."""
MPS_ANSWER_S = 5.0
"""Bound on one command to an MPS daemon, whose server may be wedged."""
DRIVER_STALL_S = 15.0
"""The first question loads the driver, which takes some seconds for each GPU without persistence mode."""
DRIVER_TOTAL_S = 60.0
"""For all questions about a machine together, and for torch's import before its own."""
PREFLIGHT_START_S = 90.0
"""Importing torch, on a cold disk and a busy machine."""
PREFLIGHT_CHECK_S = 20.0
"""One check of one device or pair."""
PREFLIGHT_COLLECTIVE_S = 30.0
"""One collective; the first one sets up all connections."""
PREFLIGHT_COLLECTIVE_MARGIN_S = 5.0
"""Beyond torch's own time-out, whose message says more than silence does."""
PREFLIGHT_GRACE_S = 2.0
"""How long the other ranks may take to speak after one has failed."""
PREFLIGHT_TOTAL_S = 300.0
"""All checks of a machine."""
PREFLIGHT_MARGIN_S = 30.0
"""The preflight keeps its own limit; only if it is stuck does the controller end it, this much later."""
CUDA_ANSWER_S = 20.0
"""What a driver may take to answer; then the question goes to CUDA in this process, as if we were not here."""

# --- the user's own preparation

SETUP_S = 1800.0
"""For the user's script that comes before the tests."""

# --- what people see while a run lasts

REDRAW_S = 0.1
"""The live view is not drawn more often than this, however fast the events come."""
PROMPT_S = 0.5
"""A line without an end is a question (a debugger's prompt) if no more comes for so long."""
HEARTBEAT_S = 30.0
"""A log in CI is never silent for longer than this while tests run."""
