"""The limits of ``disttest launch``; those that end in ``_S`` are in seconds."""

CONTAINER_STOP_S = 6.0
"""How long a container may take to end; removing it and handing files back has to fit behind it."""
CONTAINER_KILL_S = 30.0
"""From SIGKILL to the engine's word that the container has ended."""
CONTAINER_DRAIN_S = 2.0
"""For the last output, once the container has ended."""
CONTAINER_LIMIT_S = 6 * 3600.0
"""A container without a deadline ends by itself after GitHub's longest job, whether or not anyone still watches."""
CONTAINER_MARGIN_S = 60.0
"""The container's own timer only strikes when the run's deadline has failed to."""
CONTAINER_TERM_S = 15
"""Between the TERM and the KILL of that timer: reports take up to five seconds."""
CONTAINER_LEFT_S = 120.0
"""So long after its limit a container that still runs was left behind."""
ENGINE_ANSWER_S = 60
"""For one question to the engine."""
REQUIREMENTS_S = 1800
"""For pip to install what the tests import besides, into a layer of the image."""
HAND_BACK_S = 60
"""For handing the workspace's files back to their owner."""
PIDS_LIMIT = 16_384
"""Processes and threads of a container: half of what the smallest machine has, so that a fork bomb leaves the host usable."""
