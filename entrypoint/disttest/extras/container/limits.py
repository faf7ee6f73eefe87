"""Limits of ``disttest launch``; those that end in ``_S`` are in seconds."""

CONTAINER_STOP_S = 6.0
"""Time for a container to end. Removing it and handing files back has to fit after it."""
CONTAINER_KILL_S = 30.0
"""Time from SIGKILL until the engine reports the end of the container."""
CONTAINER_DRAIN_S = 2.0
"""Time for the rest of the output after the end of the container."""
OUT_OF_MEMORY_S = 1.5
"""Time for the engine to report that a killed container ran out of memory, which may follow its end."""
CONTAINER_LIMIT_S = 6 * 3600.0
"""GitHub's longest job: a container without a deadline ends after that, even without a launcher."""
CONTAINER_MARGIN_S = 60.0
"""Time after the run's deadline at which the container's own timer strikes, in case the deadline did not."""
CONTAINER_TERM_S = 15
"""Time between TERM and KILL of that timer; reports take up to five seconds."""
CONTAINER_LEFT_S = 120.0
"""Time after its limit at which a running container counts as a leftover."""
ENGINE_PING_S = 10
"""For an engine to answer at all: one that hangs accepts connections and stays silent."""
ENGINE_ANSWER_S = 60
"""Time limit of a request to the engine."""
GIT_S = 60
"""For git to list the files of a project."""
REQUIREMENTS_S = 1800
"""Time limit of pip for the additional requirements of the tests."""
HAND_BACK_S = 60
"""Time limit of handing the workspace's files back to their owner."""
PIDS_LIMIT = 16_384
"""Processes and threads of a container: half the limit of the smallest machine. A fork bomb leaves the host usable."""
