"""A scheduler without processes: says what a script says. For tests of what uses a launcher, here and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from disttest.extras.cluster.client.conductor import ExpectedNode, JobLimits, JobSetting
from disttest.extras.cluster.client.job_recorder import JobRecorder
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.launcher import (
    Capacity,
    Changed,
    Idle,
    JobEnded,
    JobOutcome,
    JobState,
    Output,
    RunDescription,
    RunEvent,
)
from disttest.extras.cluster.protocol.wire import (
    CancelJob,
    FinishJob,
    LineWriter,
    NodeDone,
    ToNode,
    Versions,
    decode_order,
)
from disttest.options.run import RunOptions
from disttest.results.directory import Home
from disttest.results.journal import Journal
from disttest.runtime.messages.protocol import Message

Answer = Callable[[int, ToNode], Sequence[Message]]
"""What a node says to an order: its number and the order in, messages out."""


def obedient(_node: int, order: ToNode) -> Sequence[Message]:
    """A node that does nothing, and ends when it is told to."""
    return (NodeDone(),) if isinstance(order, FinishJob | CancelJob) else ()


VERSIONS = Versions(disttest="1", python="3", torch="2")
"""Those of the client and of all nodes."""


def setting_of(
    job: JobSpec,
    journal: Journal,
    *,
    options: RunOptions | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    tell: Callable[[str], None] = lambda _line: None,
) -> JobSetting:
    """What a conductor needs for a job whose nodes have the digest ``d``; no line is shown by default."""
    recorder = JobRecorder(journal, Home(path=str(journal.path.parent)), tell)
    expected = ExpectedNode(versions=VERSIONS, digest="d")
    return JobSetting(job, recorder, expected, JobLimits(), options or RunOptions(), clock)


class FakeRun:
    """A job that lives in this process only."""

    def __init__(self, job: JobSpec, answer: Answer, end: JobOutcome | None) -> None:
        self._job = job
        self._answer = answer
        self._writers = [LineWriter(node) for node in range(job.shape.nodes)]
        self._lines: list[bytes] = []
        self._done: set[int] = set()
        self._end = end
        self._cancelled = ""

    def events(self) -> Iterator[RunEvent]:
        """Yield what the nodes answer, until all are done or the script says that the scheduler ended the job."""
        yield Changed(description=self.describe())
        while True:
            while self._lines:
                yield Output(line=self._lines.pop(0))
            if self._cancelled:
                yield JobEnded(end=JobOutcome(state=JobState.CANCELLED, reason=self._cancelled))
                return
            if self._end is not None:
                yield JobEnded(end=self._end)
                return
            if len(self._done) == len(self._writers):
                yield JobEnded(end=JobOutcome(state=JobState.COMPLETED, exit_code=0))
                return
            yield Idle()

    def send(self, line: bytes) -> None:
        """Hand an order to every node that is not done."""
        order = decode_order(line)
        for node, writer in enumerate(self._writers):
            for message in self._answer(node, order) if node not in self._done else ():
                self._lines += writer.lines(msgspec.json.encode(message)).splitlines()
                if isinstance(message, NodeDone):
                    self._done.add(node)

    def cancel(self, reason: str) -> None:
        """Tell the nodes, and end."""
        if not self._cancelled:
            self.send(msgspec.json.encode(CancelJob(reason=reason)))
            self._cancelled = reason

    def describe(self) -> RunDescription:
        """What is known of it."""
        return RunDescription(
            scheduler="fake",
            job_id="1",
            name=self._job.name,
            state=JobState.RUNNING,
            nodes=tuple(f"fake{node}" for node in range(self._job.shape.nodes)),
        )


class FakeScheduler:
    """Starts jobs whose nodes answer as told; ``end`` is the scheduler's word, None: when the nodes are done."""

    name = "fake"

    def __init__(
        self, answer: Answer = obedient, *, end: JobOutcome | None = None, capacity: Capacity | None = None
    ) -> None:
        self._answer = answer
        self._end = end
        self._capacity = capacity or Capacity(nodes=2, gpus_per_node=0, cpus_per_node=4, scheduler="fake")
        self.started: list[JobSpec] = []
        self.left: list[str] = []

    def capacity(self) -> Capacity:
        """What it was made with."""
        return self._capacity

    def check(self, job: JobSpec) -> None:
        """Accept everything."""

    def start(self, job: JobSpec) -> FakeRun:
        """Start a job."""
        self.started.append(job)
        return FakeRun(job, self._answer, self._end)

    def every_name(self) -> Sequence[str]:
        """None."""
        return ()

    def leftovers(self) -> Sequence[str]:
        """What a test has left."""
        return tuple(self.left)

    def remove(self, names: Sequence[str]) -> None:
        """Forget them."""
        self.left = [name for name in self.left if name not in names]
