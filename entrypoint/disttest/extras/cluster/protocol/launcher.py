"""The protocol between disttest and a scheduler: start a job, hear its nodes, end it.

A scheduler is asked for little: so many agents on so many nodes, lines from them to here, lines from here to all of
them, an end. What the end means is never taken from an exit code: see :mod:`disttest.extras.cluster.client.node_verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Protocol

from disttest.extras.cluster.protocol.job import JobSpec
from disttest.model import Frozen


class JobState(StrEnum):
    """What a scheduler says of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    """Its processes ended by themselves; whether well is not the scheduler's to say."""
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    NODE_LOST = "node lost"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    """Its node was wanted for something else: drained, short of memory or disk, or the pod was deleted by somebody."""
    OUT_OF_MEMORY = "out of memory"
    REJECTED = "rejected"
    """It will never run as it was asked for."""
    HELD = "held"
    """It will not run until somebody releases it."""
    UNREACHABLE = "unreachable"
    """The scheduler does not answer."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class JobOutcome(Frozen):
    """How a job ended, in the scheduler's words."""

    state: JobState
    reason: str = ""
    """The scheduler's own words, or ours where it has none."""
    advice: str = ""
    """What to do about it."""
    exit_code: int | None = None
    """Stored for the record, never trusted."""

    def __str__(self) -> str:
        text = f"{self.state}: {self.reason}" if self.reason else str(self.state)
        if self.state is JobState.RUNNING:  # the scheduler has ended nothing: the reason is all there is
            text = self.reason
        return f"{text}. {self.advice}" if self.advice else text


class Capacity(Frozen):
    """What a scheduler has to give, as far as one job may ask for it."""

    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    scheduler: str
    """Name and version."""
    longest_job_s: float = 0.0
    """Wall time that a job may have; 0: no limit is known."""


class RunDescription(Frozen):
    """A job that was started, for people."""

    scheduler: str
    job_id: str
    """The scheduler's number of the job; empty while it has none."""
    name: str
    state: JobState
    nodes: tuple[str, ...] = ()
    reason: str = ""
    """Why it waits, where it does."""


class Changed(Frozen):
    """The scheduler says something new about the job."""

    description: RunDescription


class Output(Frozen):
    """A line that an agent (or the scheduler) wrote, without its end."""

    line: bytes


class Idle(Frozen):
    """Nothing happened for a while."""


class JobEnded(Frozen):
    """The last event."""

    end: JobOutcome


RunEvent = Changed | Output | Idle | JobEnded


class JobRun(Protocol):
    """A job that was started."""

    def events(self) -> Iterator[RunEvent]:
        """Yield what happens, :class:`Idle` when nothing does, and :class:`Ended` exactly once, last."""

    def send(self, line: bytes) -> None:
        """Send a line to all agents; one that has ended does not get it, which is no error."""

    def cancel(self, reason: str) -> None:
        """Have it end: agents are told first, and end by themselves. Returns at once; the end is an event."""

    def describe(self) -> RunDescription:
        """What is known of it, without asking the scheduler."""


class LauncherOptions(Frozen):
    """What a user may ask of a scheduler; each takes what it knows."""

    nodes: int = 1
    """How many are wanted, where the scheduler has as many as anybody likes."""
    command: tuple[str, ...] = ()
    """What starts an agent on a node; empty: the usual."""
    partition: str = ""
    account: str = ""
    extra: tuple[str, ...] = ()
    """More arguments in the scheduler's words, such as ``--qos=ci`` or ``--mem=64G``."""
    container: str = ""
    """How an image is run: ``pyxis``, ``docker``, or empty for none."""
    mounts: tuple[str, ...] = ()
    """What a container sees of its node: ``/data`` or ``/data:/data:ro``."""
    pod_template: str = ""
    """A file with a pod that those of Kubernetes are made from."""
    gpu_resource: str = ""
    """What Kubernetes calls a GPU, such as ``nvidia.com/gpu``."""


class NodeVariables(Frozen):
    """Where a scheduler tells an agent its place; of several variables the first that is set counts."""

    scheduler: str
    node: tuple[str, ...]
    nodes: tuple[str, ...]
    host: tuple[str, ...]
    address: tuple[str, ...] = ()
    """This node's own address, as the other nodes see it."""
    peer: tuple[str, ...] = ()
    """An address on the network that connects the nodes; this node's own is the one that faces it."""
    gpus: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)
    """Which GPUs it was granted."""
    gpu_count: tuple[str, ...] = ()
    """How many, where it sees no others: without a UUID each is then numbered from 0."""
    last_word: tuple[str, ...] = ()
    """The file from which the scheduler takes an agent's reason to end."""


class Launcher(Protocol):
    """What disttest needs of a scheduler; ``tests/cluster/test_launchers.py`` holds each one to it."""

    name: str

    def capacity(self) -> Capacity:
        """What it has.

        Raises:
            SchedulerError: it is not installed, not reachable, or refuses; the message has its own words.
        """

    def start(self, job: JobSpec) -> JobRun:
        """Start a job, or queue it. A refusal is the job's end, not an exception."""

    def every_name(self) -> Sequence[str]:
        """Names of all jobs of disttest that our user has there."""

    def leftovers(self) -> Sequence[str]:
        """Names of jobs whose client is dead."""

    def remove(self, names: Sequence[str]) -> None:
        """End jobs by name; those that are gone are fine."""
