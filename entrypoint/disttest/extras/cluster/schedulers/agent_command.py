"""Commands for schedulers: short calls of theirs with a time limit, and an agent's command line and variables."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import disttest
from disttest.extras.cluster.protocol.job import JobSpec


def call(
    argv: Sequence[str], environ: Mapping[str, str], *, limit_s: float, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command with a text as its input, and wait for its end.

    Raises:
        OSError: the command cannot be run. subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    return subprocess.run(
        list(argv),
        env=dict(environ),
        # Never this process's own input: a command that asks for a password would wait for the terminal.
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
    )


ALLOWED = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_*",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "LD_LIBRARY_PATH",
    "NCCL_*",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "TORCH_*",
    "OMP_NUM_THREADS",
    "DISTTEST_*",
)
"""Variables that are passed by default, to find the program and to tune it. Secrets of a CI job stay here."""

NOT_OURS = (
    *("DISTTEST_INPUT_*", "DISTTEST_STEP_*", "DISTTEST_NODE*", "DISTTEST_POD*"),
    *("DISTTEST_RESULTS", "DISTTEST_LAUNCHER*"),
)
"""Exceptions: variables that concern only this process."""

NOT_INSIDE = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Paths of the submitting machine, which are meaningless in an image or hide its own."""


def agent_command() -> tuple[str, ...]:
    """Return the command of an agent with this interpreter, for nodes that share the file system or image."""
    return (sys.executable, "-m", "disttest", "node-agent")


def travelling(job: JobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a job's agents, with this package on their Python path."""
    patterns = (*ALLOWED, *job.environment)
    kept = {
        name: value
        for name, value in environ.items()
        if _matches(name, patterns) and not _matches(name, NOT_OURS)
    }
    ours = str(Path(disttest.__file__).parents[1])
    # First, since another version on the node's path must not become the agent.
    paths = [ours, *(path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path and path != ours)]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
