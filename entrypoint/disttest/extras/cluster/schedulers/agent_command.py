"""How an agent is started: its command line, and the variables that travel to it."""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import disttest
from disttest.extras.cluster.protocol.job import JobSpec

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
"""Variables that travel by default: what finds the program and tunes it. Tokens and secrets of a CI job stay here."""

NOT_OURS = (
    *("DISTTEST_INPUT_*", "DISTTEST_STEP_*", "DISTTEST_NODE*", "DISTTEST_POD*"),
    *("DISTTEST_RESULTS", "DISTTEST_LAUNCHER*"),
)
"""Of those, what means this process only."""

NOT_INSIDE = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Paths of the submitting machine, which mean nothing inside an image or hide what it has."""


def agent_command() -> tuple[str, ...]:
    """The agent by this very interpreter, which the nodes have too where they share its file system or image."""
    return (sys.executable, "-m", "disttest", "node-agent")


def travelling(job: JobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the agents of a job get; this package is found wherever it was found here."""
    patterns = (*ALLOWED, *job.environment)
    kept = {
        name: value
        for name, value in environ.items()
        if _matches(name, patterns) and not _matches(name, NOT_OURS)
    }
    ours = str(Path(disttest.__file__).parents[1])
    paths = [ours, *(path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path and path != ours)]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
