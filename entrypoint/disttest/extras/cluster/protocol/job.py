"""A job for a scheduler, as frozen data that travels as JSON.

From the name of a job, another client can determine whether the job's client is alive.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from disttest.host.proc import is_running, this_process
from disttest.model import Frozen, TestCase

NAME_PREFIX = "disttest-"
"""Prefix of the names of all jobs, by which those of a killed client are found."""


class JobKind(StrEnum):
    """Kind of work of a job's agents."""

    LEASE = "lease"
    """One node with a complete local run on the granted resources."""
    WORLD = "world"
    """Several nodes, each with its part of the ranks of one world at a time."""


class JobShape(Frozen):
    """Resources of a job."""

    nodes: int
    ranks_per_node: int
    """Ranks of its widest test; on the CPU also the number of processors used on each node."""
    gpus_per_node: int = 0

    def __str__(self) -> str:
        gpus = f", {self.gpus_per_node} GPUs each" if self.gpus_per_node else ""
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''} with {self.ranks_per_node} ranks{gpus}"


class JobSpec(Frozen):
    """A job with all data that its agents need."""

    job_id: str
    """Id such as ``j1``, unique in the run."""
    run_id: str
    kind: JobKind
    shape: JobShape
    tests: tuple[TestCase, ...]
    """Tests to run, in order; each must get a result."""
    targets: tuple[str, ...]
    """Suites and paths as the user named them; each node resolves them."""
    limit_s: float
    """Wall time after which the scheduler ends the job."""
    worlds: tuple[tuple[int, ...], ...] = ()
    """For kind ``world``: indices of the tests that share a world, in order. A lease divides its tests itself."""
    expected_s: tuple[float, ...] = ()
    """Expected duration of each test, by which a lease schedules; empty if unknown."""
    failed: tuple[int, ...] = ()
    """Indices of the tests to run first, since they failed last time."""
    flags: dict[str, str] = msgspec.field(default_factory=dict)
    """Options of the run, by field name."""
    pytest_arguments: tuple[str, ...] = ()
    live_output: bool = False
    """Whether the client shows the output of running ranks."""
    environment: tuple[str, ...] = ()
    """Names of the variables that are passed to the nodes, in addition to the default ones."""
    image: str = ""
    """Container image of the agents; empty for none."""
    directory: str = ""
    """Working directory on the nodes; empty for that of the client."""
    shared_dir: str = ""
    """Directory that all nodes see; empty if there is none."""
    collected_for: str = ""
    """The machine that the tests were collected for, as JSON; nodes of a spanning world collect for the same."""
    ports: tuple[int, int] = (0, 0)
    """First and last port for the rendezvous; zeros for any port."""

    @property
    def name(self) -> str:
        """Name of the job in the scheduler."""
        return f"{NAME_PREFIX}{self.run_id}-{self.job_id}"


# disttest-0123abcdef-4711-t8675309-j1: the client's machine, pid and start time (pids are reused), the job.
_NAME = rf"{NAME_PREFIX}(?P<machine>[0-9a-f]{{10}})-(?P<pid>\d+)-t(?P<started>\d+)(-j\d+.*)?"


def this_machine() -> str:
    """Return a digest of the kernel's boot id and the PID namespace, within which pids are unique."""
    here = this_process()
    return hashlib.sha256(f"{here.boot} {here.namespace}".encode()).hexdigest()[:10]


def new_run_id() -> str:
    """Return an id for a run of this process, unique by machine, pid and start time."""
    process = this_process()
    return f"{this_machine()}-{process.pid}-t{process.started}"


def dead_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the jobs whose client ran on this machine and is gone; the state of other clients is unknown."""
    machine = this_machine()
    matches = ((name, re.fullmatch(_NAME, name)) for name in names)
    return tuple(
        name
        for name, match in matches
        if match and match["machine"] == machine and not is_running(int(match["pid"]), int(match["started"]))
    )
