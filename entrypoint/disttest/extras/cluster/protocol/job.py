"""What a scheduler is asked to run: a job, as frozen data that travels as JSON."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from disttest.model import Frozen, TestCase

NAME_PREFIX = "disttest-"
"""Begins the name of every job, so that what a killed client left can be found."""


class JobKind(StrEnum):
    """What the agents of a job do."""

    LEASE = "lease"
    """One node: a whole local run on what was granted, warm worlds and all."""
    WORLD = "world"
    """Several nodes: each has its share of the ranks of one world at a time."""


class JobShape(Frozen):
    """How much of a cluster a job holds."""

    nodes: int
    ranks_per_node: int
    """Of its widest test; on the CPU also the number of processors that each node lends."""
    gpus_per_node: int = 0

    def __str__(self) -> str:
        gpus = f", {self.gpus_per_node} GPUs each" if self.gpus_per_node else ""
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''} with {self.ranks_per_node} ranks{gpus}"


class JobSpec(Frozen):
    """A job: everything that its agents need to know travels in it."""

    job_id: str
    """``j1``, unique in the run."""
    run_id: str
    kind: JobKind
    shape: JobShape
    tests: tuple[TestCase, ...]
    """The worlds to run, in order; every one is owed a result."""
    targets: tuple[str, ...]
    """Suites and paths as the user named them; each node resolves them for itself."""
    limit_s: float
    """Wall time after which the scheduler ends the job."""
    worlds: tuple[tuple[int, ...], ...] = ()
    """For a job of kind ``world``: which tests (by index) share a world, in order. A lease decides for itself."""
    expected_s: tuple[float, ...] = ()
    """What each test is expected to take; empty when nothing is known. A lease schedules by it."""
    failed: tuple[int, ...] = ()
    """Which tests (by index) go first, as they failed the last time."""
    flags: dict[str, str] = msgspec.field(default_factory=dict)
    """Options of the run, by field name."""
    pytest_arguments: tuple[str, ...] = ()
    live_output: bool = False
    """Whether the client shows what ranks print while they run."""
    environment: tuple[str, ...] = ()
    """Names of the variables that travel from the client to the nodes; no other one does."""
    image: str = ""
    """Container image that the agents run in; empty: none."""
    directory: str = ""
    """Working directory on the nodes; empty: as on the client."""
    shared_dir: str = ""
    """A directory that all nodes see; empty when there is none."""
    collected_for: str = ""
    """The machine that the tests were collected for, as JSON; nodes of a spanning world collect for the same."""
    ports: tuple[int, int] = (0, 0)
    """First and last port that the rendezvous may use; zeros: any."""

    @property
    def name(self) -> str:
        """Its name with the scheduler."""
        return f"{NAME_PREFIX}{self.run_id}-{self.job_id}"
