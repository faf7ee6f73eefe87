"""Every limit, grace period and interval that decides something, in seconds.

A supervisor's limit must exceed the limits of its children. Otherwise it kills a child that is shutting down
cleanly, and its evidence and reports are lost. ``tests/unit/test_limits.py`` checks this order. Defaults that a
user can set are in the registry of options.
"""

# One module for all limits, because a test can compare them only there.
# docs/decisions/0008-limits-in-one-module.md

# --- how often a loop that waits for events looks at the clock as well

TICK_S = 0.2
"""Longest delay before a grown journal, a log to cut or a deadline is noticed."""
IDLE_S = 1.0
"""The same interval for loops where only time can have changed anything."""
SPARE_LOOK_S = 0.25
"""Interval between two measurements of idle processors. Worlds start and end in between."""
EVIDENCE_POLL_S = 0.01
"""Polling interval for evidence: an answer is a file that grows."""
SETTLED_SOURCE_S = 2.0
"""Age of a saved source from which its byte code is kept: byte code records times in whole seconds."""
REAPER_POLL_S = 0.1
"""Polling interval of the reaper, which reads all of ``/proc`` to find processes that carry the mark of a run."""

# --- the end of a process

# A loaded machine needs time to free memory; a process that lives longer is stuck in the kernel.
KILL_S = 2.0
"""Time from SIGKILL to the end of a process."""
BOUNDED_KILL_S = 3.0
"""The same for a process that talks to a driver and therefore has more to release."""
RANK_TERM_S = 0.1
"""Time between SIGTERM and SIGKILL of a rank, whose test may have installed no handler or a broken one."""
WORLD_TERM_S = 0.5
"""Time between SIGTERM and SIGKILL of a world, which kills its ranks meanwhile."""
PYTEST_LEAVE_S = 5.0
"""Time for pytest to exit once it is done; a thread or an exit handler of a test may keep it for ever."""
PYTEST_TERM_S = 0.2
"""Time between SIGTERM and SIGKILL of pytest, after it ignored SIGINT."""
RANK_EXIT_S = 2.0
"""Time from the end of a rank's channel to the end of its process."""
RANKS_LEAVE_S = 5.0
"""Time for the ranks of a healthy world to tear down and exit."""
LAST_TEAR_DOWN_S = 20.0
"""The same if fixtures of a wider scope, or hooks of a conftest, have to end there; a container needs ten seconds to stop."""
BROKEN_LEAVE_S = 1.0
"""The same for a world that saw a failure: its ranks may wait for each other in vain."""

# --- an attempt

EVIDENCE_S = 0.6
"""Time for ranks to report their stacks. Most need a few milliseconds; some cannot answer."""
# A worker of torch's DataLoader polls its parent every 5 seconds: https://github.com/pytorch/pytorch/pull/6606
ORPHANS_S = 6.0
"""Time for helpers of a killed rank to notice its end."""
NATIVE_STACKS_S = 2.0
"""Time for the native stacks of all ranks together. Reading torch's libraries takes half a second."""
MAIN_MARGIN_S = 3.0
"""A main process ends its ranks at the test's deadline. This is the time it has to do so and to report."""
MAIN_CANCEL_S = 1.2
"""The same when the run is cancelled."""
CONSEQUENCE_WAIT_S = 3.0
"""Time for the other ranks after one has lost a peer. The lost peer may be cleaning up before it fails."""
RENDERING_S = 10.0
"""Time for a rank to render the report of a failure, which calls ``repr()`` of the test's objects."""
RENDERING_LEAST_S = 2.0
"""Least time for rendering, for an ordinary test that has used up its own limit."""
OWN_TEAR_DOWN_S = 2.0
"""Least time for the tear-down of a rank that failed; its peers may wait for it in vain."""
RENDERING_NEXT_S = 1.0
"""Time to render each further value after the limit has passed."""
CLEAN_UP_S = 5.0
"""Least time between two alarms of a test's limit, for the blocks that clean up after the first one."""
PHASE_REPORT_S = 0.05
"""A phase that took longer is reported immediately. If a later phase hangs, the earlier result is not lost."""

NO_LIMIT_S = 20 * 24 * 3600.0
"""Stands in for no limit: close to the longest time that the kernel can be asked to wait."""

# --- a world

COLLECT_S = 300.0
"""Time for a clean process to collect the files of a run a second time."""
THREAD_REST_S = 0.25
"""Time for a thread to come to rest before forking counts as unsafe. A thread pool spins briefly before it waits."""
THREAD_END_S = 0.1
"""Time for a thread that a test has left to end by itself, before the test is said to have leaked it."""
WORLD_START_S = 120.0
"""Time for fresh interpreters to import torch from a slow file system, all at the same time."""
RANKS_COLLECT_S = 20.0
"""The least time for ranks to import torch and collect, whatever the time limit of the first test."""
WORLD_SILENCE_S = 30.0
"""Time that a world may be silent beyond the limits of its tests. After it the world counts as stopped or stuck."""
RETRY_FIRST_PAUSE_S = 0.5
RETRY_LONGEST_PAUSE_S = 30.0
"""Pauses between attempts that a machine spoiled: about half a second at first, doubled each time up to the longest."""

# --- the end of a run, from the inside out: a CI runner sends SIGINT, 7.5 s later SIGTERM, 2.5 s later SIGKILL
# https://github.com/actions/runner/issues/1309

WORLD_POOL_CANCEL_S = 2.5
"""Time for worlds to end cleanly when the run is cancelled."""
SUPERVISOR_CANCEL_S = 3.5
"""Time for pytest to stop cleanly. After it the supervisor kills pytest and writes the reports."""
REAPER_ORDERLY_S = 6.0
"""Time for worlds whose command and controller were killed to end their own processes."""
# It still has to report which processes hold them.
REFUSAL_S = 2.0
"""Time before the run's deadline at which a run without a GPU stops waiting."""
DEADLINE_MARGIN_S = 5.0
"""The controller enforces the run's deadline. The supervisor intervenes this much later, if the controller is stuck."""
OUTPUT_STALL_S = 60.0
"""A reader that accepts nothing for this long counts as gone."""

KEPT_LOGS_S = 7 * 24 * 3600.0
"""Age at which the logs of a failed run without a results directory are removed."""

# --- questions about devices

CUDA_ANSWER_S = 20.0
"""Time for a driver to answer. After it this process asks CUDA directly, as it would without disttest."""

# --- the user's own preparation

SETUP_S = 1800.0
"""Time for the setup script of the user."""

# --- what people see while a run lasts

REDRAW_S = 0.1
"""Shortest interval between two drawings of the live view."""
PROMPT_S = 0.5
"""An unfinished line counts as a prompt, for example a debugger's, if no more text follows for this long."""
HEARTBEAT_S = 30.0
"""Longest silence of a CI log while tests run."""
