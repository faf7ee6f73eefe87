"""Protocol between disttest and a scheduler: start a job, receive output of its nodes, end it.

A scheduler has to start agents on nodes, carry lines from each agent to the client and from the client to all agents,
and end the job. An exit code decides no verdict: see :mod:`disttest.extras.cluster.client.node_verdict`.

Alternatives were examined: Ray, torchx, Monarch, Dask and torch elastic fit gangs of tests worse, and a queue of
disttest would be a second queue next to the scheduler's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Protocol

from disttest.extras.cluster.protocol.job import JobSpec
from disttest.model import Frozen


class JobState(StrEnum):
    """State of a job in the scheduler."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    """Its processes ended on their own, successfully or not."""
    CANCELLED = "cancelled"
    CANCELLED_BY_HAND = "cancelled by hand"
    """Cancelled with the scheduler's own command, and not by this run."""
    TIME_LIMIT = "time limit"
    NODE_LOST = "node lost"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    """Its node was needed for something else, drained or short of memory or disk, or a user deleted the pod."""
    OUT_OF_MEMORY = "out of memory"
    REJECTED = "rejected"
    """It will never run with this request."""
    HELD = "held"
    """It will not run until it is released."""
    UNREACHABLE = "unreachable"
    """The scheduler does not answer."""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class JobOutcome(Frozen):
    """End of a job as the scheduler reports it."""

    state: JobState
    reason: str = ""
    """Words of the scheduler, or of disttest if it gives no reason."""
    advice: str = ""
    """Advice for the user."""
    exit_code: int | None = None
    """Recorded, but never decisive."""

    def __str__(self) -> str:
        text = f"{self.state}: {self.reason}" if self.reason else str(self.state)
        if self.state is JobState.RUNNING:  # the scheduler has not ended the job: only the reason counts
            text = self.reason
        return f"{text}. {self.advice}" if self.advice else text


class Capacity(Frozen):
    """Resources that one job may request."""

    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    scheduler: str
    """Name and version of the scheduler."""
    longest_job_s: float = 0.0
    """Longest wall time of a job; 0 if no limit is known."""


class RunDescription(Frozen):
    """Description of a started job for the user."""

    scheduler: str
    job_id: str
    """Number of the job in the scheduler; empty until it has one."""
    name: str
    state: JobState
    nodes: tuple[str, ...] = ()
    reason: str = ""
    """Reason why it waits, if it does."""


class Changed(Frozen):
    """The scheduler has reported a change of the job."""

    description: RunDescription


class Output(Frozen):
    """A line of an agent (or of the scheduler), without the newline."""

    line: bytes


class NodeEnded(Frozen):
    """The agent of a node has ended, as far as the scheduler knows. Its last lines may still be on their way."""

    node: int
    how: str


class Idle(Frozen):
    """Nothing has happened for a while."""


class JobEnded(Frozen):
    """The last event of a job."""

    end: JobOutcome


RunEvent = Changed | Output | NodeEnded | Idle | JobEnded


class JobRun(Protocol):
    """A started job."""

    def events(self) -> Iterator[RunEvent]:
        """Yield events as they happen, :class:`Idle` if there are none, and finally one :class:`JobEnded`."""

    def send(self, line: bytes) -> None:
        """Send a line to all agents; it is not an error if one has ended."""

    def cancel(self, reason: str) -> None:
        """Cancel the job and return immediately. Agents are asked to end first; the end is an event."""

    def describe(self) -> RunDescription:
        """Return the last known description, without a query."""


class LauncherOptions(Frozen):
    """Options for schedulers; each uses those that it knows."""

    nodes: int = 1
    """Number of nodes for a scheduler without a limit."""
    command: tuple[str, ...] = ()
    """Command that starts an agent on a node; empty for the default."""
    partition: str = ""
    account: str = ""
    extra: tuple[str, ...] = ()
    """Further arguments in the scheduler's syntax, such as ``--qos=ci`` or ``--mem=64G``."""
    container: str = ""
    """Way to run an image: ``pyxis``, ``docker``, or empty for none."""
    mounts: tuple[str, ...] = ()
    """Paths of the node to mount in its container: ``/data`` or ``/data:/data:ro``."""
    pod_template: str = ""
    """File with the template for Kubernetes pods."""
    job_objects: str = ""
    """File with further Kubernetes objects of each job."""
    priority_class: str = ""
    """Kubernetes' priority class of the pods."""
    pod_nodes: str = ""
    """Declared nodes of Kubernetes: ``4x8x96`` for 4 nodes of 8 GPUs and 96 processors."""
    gpu_resource: str = ""
    """Kubernetes' name of a GPU, such as ``nvidia.com/gpu``."""


class NodeVariables(Frozen):
    """Variables in which a scheduler describes an agent's place; the first one that is set counts."""

    scheduler: str
    node: tuple[str, ...]
    nodes: tuple[str, ...]
    host: tuple[str, ...]
    address: tuple[str, ...] = ()
    """Address of this node, as the other nodes see it."""
    peer: tuple[str, ...] = ()
    """Address on the network that connects the nodes; this node's own address is the one that faces it."""
    gpus: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)
    """Granted GPUs."""
    gpu_count: tuple[str, ...] = ()
    """Number of GPUs, if it sees no others; without UUIDs they are numbered from 0."""
    last_word: tuple[str, ...] = ()
    """File from which the scheduler reads an agent's reason for its end."""


class Launcher(Protocol):
    """Interface of a scheduler; ``tests/cluster/test_launchers.py`` tests all implementations."""

    name: str

    def capacity(self) -> Capacity:
        """Query the available resources.

        Raises:
            SchedulerError: the scheduler is missing, out of reach, or refuses; the message has its own words.
        """

    # Not a part of `capacity`, which `disttest plan` calls without an image.
    def check(self, job: JobSpec) -> None:
        """Refuse options of the user that no job can run with; ``job`` has no tests.

        Raises:
            SchedulerError: the image is missing, or an option is for another scheduler.
        """

    def start(self, job: JobSpec) -> JobRun:
        """Submit a job. A refusal is the end of the job, not an exception."""

    def every_name(self) -> Sequence[str]:
        """Return the names of all jobs of disttest of this user."""

    def leftovers(self) -> Sequence[str]:
        """Return the names of jobs whose client is dead."""

    def remove(self, names: Sequence[str]) -> None:
        """End jobs by name; missing ones are ignored."""
