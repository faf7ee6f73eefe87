"""Client side of one job: receive messages of its nodes, send orders, judge, and give up when necessary.

A conductor has no process and no clock of its own: messages and the time go in, orders come out. :func:`conduct`
connects it to a run. The client decides everything and the nodes decide nothing, so nodes that are cut off from each
other can still report what their ranks were doing.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from disttest.errors import ProtocolError
from disttest.extras.cluster.client.job_recorder import JobRecorder
from disttest.extras.cluster.limits import (
    AGENT_GONE_S,
    CLIENT_ALIVE_S,
    CLIENT_STEP_S,
    GOODBYE_S,
    NODE_OVERRUN_S,
    NODES_READY_S,
    SCHEDULERS_WORD_S,
)
from disttest.extras.cluster.option_rows import QUEUE_LIMIT, SILENCE_LIMIT
from disttest.extras.cluster.protocol.fingerprint import disagreement
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.launcher import (
    Changed,
    JobEnded,
    JobOutcome,
    JobRun,
    JobState,
    NodeEnded,
    Output,
    RunDescription,
)
from disttest.extras.cluster.protocol.wire import (
    FromNode,
    LineReader,
    LogText,
    NodeDone,
    NodeNote,
    NodeReady,
    RankOutput,
    Refused,
    StillHere,
    TakeJob,
    Versions,
    encode_order,
    is_ours,
)
from disttest.model import Frozen
from disttest.options.run import RunOptions
from disttest.runtime.messages.protocol import Message

_OUTPUT_KEPT = 30
_SCHEDULERS_WORD = (
    JobState.CANCELLED_BY_HAND,
    JobState.TIME_LIMIT,
    JobState.PREEMPTED,
    JobState.EVICTED,
    JobState.OUT_OF_MEMORY,
    JobState.NODE_LOST,
)
"""States in which a scheduler ended a job against the client's will; it knows the reason, and the nodes do not."""


class JobLimits(Frozen):
    """Time limits of the client, in seconds."""

    queue_s: float = QUEUE_LIMIT.default
    """Time in the queue of the scheduler."""
    start_s: float = NODES_READY_S
    """Time from the first message of a node until all have collected, and until a world is up."""
    silence_s: float = SILENCE_LIMIT.default
    """Silence after which a node counts as lost."""
    overrun_s: float = NODE_OVERRUN_S
    """Time beyond a test's own limit, for evidence and for the end of its ranks."""


class ExpectedNode(Frozen):
    """Versions and digest that nodes must have."""

    versions: Versions
    digest: str


class JobSetting(NamedTuple):
    """Constructor arguments of a conductor."""

    job: JobSpec
    recorder: JobRecorder
    expected: ExpectedNode
    limits: JobLimits
    options: RunOptions
    clock: Callable[[], float] = time.monotonic


class _TimeOfClient:
    """A clock that goes on only while this client follows its job.

    A client that was stopped (Ctrl-Z) continues with lines of one node, while those of the others
    are unread. On a usual clock, these nodes would have been silent for all that time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen_s = self._now_s = clock()

    def __call__(self) -> float:
        before_s, self._seen_s = self._seen_s, self._clock()
        self._now_s += min(self._seen_s - before_s, CLIENT_STEP_S)
        return self._now_s


# The client decides and nodes only report, because nodes die and networks split.
# docs/decisions/0031-client-conducts.md
class Conductor(ABC):
    """Common part of the two kinds of jobs."""

    def __init__(self, setting: JobSetting) -> None:
        self.job = setting.job
        self.failure: JobOutcome | None = None
        """Reason why the job was given up, if it was."""
        self.refusal = ""
        """Reason why the nodes must not run the job; empty if they may."""
        self._recorder = setting.recorder
        self._expected = setting.expected
        self._limits = setting.limits
        self._clock = _TimeOfClient(setting.clock)
        self._usual_clock = setting.clock
        self._ready: dict[int, NodeReady] = {}
        self._offsets_s: dict[int, float] = {}
        self._heard_s: dict[int, float] = {}
        self._done: set[int] = set()
        self._agents_gone: dict[int, tuple[float, str]] = {}
        """Node -> when the scheduler reported the end of its agent, and how it ended."""
        self._done_s: float | None = None
        self._queued_s = self._usual_clock()
        self._running_s: float | None = None
        self._said_s = self._usual_clock()
        self._scheduler = RunDescription(scheduler="", job_id="", name=self.job.name, state=JobState.QUEUED)
        self._output: list[str] = []
        self._ended_by_scheduler = False

    # --- for `conduct`

    def receive(self, node: int, message: FromNode) -> Sequence[Message]:
        """Handle a message of a node, and return the orders in reply."""
        now_s = self._clock()
        # The client's clock: clocks of nodes differ, and only the time between two messages counts.
        self._heard_s[node] = now_s
        # The scheduler may report a job as running long before its agents are up, so a message decides.
        self._running_s = self._running_s or now_s
        match message:
            case NodeReady():
                return self._on_ready(node, message)
            case Refused(host=host, message=text):
                self.refuse(f"node {host}: {text}")
            case LogText(path=path, text=text):
                self._recorder.log(path, text)
            case RankOutput(rank=rank, lines=lines):
                self._recorder.output(rank, lines)
            case NodeNote(message=text):
                self._recorder.noted(text)
            case NodeDone() as done:
                self._on_done(node, done)
            case _ if not self.refusal:
                # The last messages of nodes that were asked to end still count; orders in reply do not.
                orders = self.on_message(node, message)
                return () if self.failure else orders
        return ()

    def tick(self) -> Sequence[Message]:
        """Check limits as time passes, and return orders."""
        now_s = self._clock()
        if self.failure is None and len(self._done) < self.job.shape.nodes:
            self._check_limits(now_s)
        orders = () if self.failure else self.on_tick()
        # An agent that hears nothing for CLIENT_SILENCE_S takes its client for dead, and ends.
        usual_s = self._usual_clock()
        if self._running_s and usual_s - self._said_s >= CLIENT_ALIVE_S:
            self._said_s = usual_s
            return (*orders, StillHere())
        return orders

    def fail(self, state: JobState, reason: str, advice: str = "") -> None:
        """Give up the job; the first reason counts."""
        # Later reasons are usually consequences of the first: a lost node silences the others.
        self.failure = self.failure or JobOutcome(state=state, reason=reason, advice=advice)

    def refuse(self, reason: str) -> None:
        """Record that these nodes must not run the job, and give it up."""
        self.refusal = self.refusal or reason
        self.fail(JobState.REJECTED, reason)

    def note(self, seen: RunDescription) -> None:
        """Record a description from the scheduler."""
        if seen.state is JobState.QUEUED and seen.reason and seen.reason != self._scheduler.reason:
            self._recorder.show_progress(f"{self.job.name} waits: {seen.reason}")
        if seen.state is JobState.RUNNING and seen.reason and seen.reason != self._scheduler.reason:
            self._recorder.show_progress(f"{self.job.name} is {seen.reason}")
        self._scheduler = seen

    def node_ended(self, node: int, how: str) -> None:
        """Note that the scheduler reported the end of an agent, which may have sent its last word before."""
        self._agents_gone.setdefault(node, (self._clock(), how))

    def keep_output(self, line: bytes) -> None:
        """Keep a line that no agent wrote; it is shown if an agent never comes up."""
        self._output = [*self._output, line.decode("utf-8", "replace")][-_OUTPUT_KEPT:]

    @property
    def is_over(self) -> bool:
        """Whether all nodes have finished, and the scheduler has had time to notice."""
        goodbye_s = SCHEDULERS_WORD_S if self._ended_by_scheduler else GOODBYE_S
        return self._done_s is not None and self._clock() - self._done_s > goodbye_s

    def leave(self) -> None:
        """Close the job without the scheduler's confirmation."""
        self._recorder.noted(
            f"{self.job.name}: every node is done, but the scheduler has not confirmed the end of the job"
        )
        self.close(JobOutcome(state=JobState.COMPLETED, reason="the scheduler has not confirmed its end"))

    def close(self, end: JobOutcome) -> None:
        """Judge all tests without a verdict after the end of the job."""
        final = self.failure or end
        # The nodes know only the signal that they got. The scheduler knows why it was sent.
        if self._ended_by_scheduler and end.state in _SCHEDULERS_WORD:
            final = end
        # Lines that no agent wrote, of srun, docker or Python: they say why none came up.
        if self._output and not self._ready and not self.refusal:
            final = msgspec.structs.replace(final, advice=f"{final.advice}\n" + "\n".join(self._output))
        self.settle(final)

    # --- for the two kinds

    @abstractmethod
    def on_message(self, node: int, message: FromNode) -> Sequence[Message]:
        """Handle a message of this kind of job."""

    @abstractmethod
    def on_all_ready(self) -> Sequence[Message]:
        """Continue once all nodes have collected and agree."""

    def on_tick(self) -> Sequence[Message]:
        """Return orders that are due because time has passed."""
        return ()

    @abstractmethod
    def settle(self, end: JobOutcome) -> None:
        """Give a verdict to each test without one."""

    def check_progress(self, now_s: float) -> None:  # noqa: B027 - optional: a lease has no further limits
        """Fail the job if it exceeds a limit of its kind; called with each tick while nodes work."""

    # --- what both share

    def hosts(self) -> tuple[str, ...]:
        """Return the names of the nodes; empty until all are known."""
        known = tuple(ready.host for _, ready in sorted(self._ready.items()))
        return known if len(known) == self.job.shape.nodes else ()

    def _on_ready(self, node: int, ready: NodeReady) -> Sequence[Message]:
        self._ready[node] = ready
        # The way of the message is included: milliseconds, where clocks of nodes can differ by minutes.
        self._offsets_s[node] = self._recorder.now() - ready.at_s
        if len(self._ready) < self.job.shape.nodes:
            return ()
        if why := disagreement(self._expected.versions, self._expected.digest, self._ready):
            self.refuse(why)
            return ()
        return self.on_all_ready()

    def _on_done(self, node: int, done: NodeDone) -> None:
        self._done.add(node)
        self._ended_by_scheduler = self._ended_by_scheduler or done.by_scheduler
        if done.reason:
            name = self._ready[node].host if node in self._ready else f"number {node}"
            self.fail(JobState.NODE_LOST, f"node {name}: {done.reason}")
        if len(self._done) == self.job.shape.nodes:
            self._done_s = self._clock()

    def _check_limits(self, now_s: float) -> None:
        limits = self._limits
        for node, (gone_s, how) in self._agents_gone.items():
            # The last words of an agent may arrive after the scheduler's report of its end, because they
            # take another way.
            if node not in self._done and now_s - gone_s > AGENT_GONE_S:
                self._ended_by_scheduler = True  # it may know why
                self.fail(
                    JobState.NODE_LOST,
                    f"the agent of node {self._name(node)} has ended: {how}",
                    "The kernel log of the node (dmesg) says more, for example that memory ran out",
                )
        # The limits below count from the first message of a node.
        if self._running_s is None:
            if self._usual_clock() - self._queued_s > limits.queue_s:
                why = f" ({self._scheduler.reason})" if self._scheduler.reason else ""
                self.fail(
                    JobState.QUEUED,
                    f"still waiting after {limits.queue_s:g} s{why}",
                    "The tests are not at fault; raise --queue-limit, or request less",
                )
            return
        for node, heard_s in self._heard_s.items():
            # A node that is done sends nothing more.
            if node in self._done or now_s - heard_s <= limits.silence_s:
                continue
            if self._scheduler.reason:  # a job that runs has one if it is kept from running
                self.fail(
                    JobState.HELD,
                    f"job {self._scheduler.job_id} is {self._scheduler.reason}, and node {self._name(node)} has been "
                    f"silent for {limits.silence_s:g} s",
                    "Nothing is wrong with the tests: run it again, or raise the setting silence-limit",
                )
            else:
                self.fail(
                    JobState.NODE_LOST,
                    f"node {self._name(node)} has been silent for {limits.silence_s:g} s",
                    "It is down, or cut off from the client; see sinfo -R, kubectl describe node, or its system log",
                )
        if len(self._ready) < self.job.shape.nodes and now_s - self._running_s > limits.start_s:
            late = ", ".join(str(node) for node in range(self.job.shape.nodes) if node not in self._ready)
            self.fail(
                JobState.NODE_LOST, f"after {limits.start_s:g} s node {late} had not collected the tests"
            )
        self.check_progress(now_s)

    def _name(self, node: int) -> str:
        return self._ready[node].host if node in self._ready else f"number {node}"


def conduct(run: JobRun, conductor: Conductor, stop: Callable[[], str]) -> None:
    """Conduct a job to its end.

    Args:
        run: the started job.
        conductor: makes the decisions.
        stop: returns why the whole run must end now; empty if it must not.
    """
    reader = LineReader()
    # Sent before any agent is up: the launcher keeps it until the agents read.
    run.send(encode_order(TakeJob(job=conductor.job)))
    for event in run.events():
        orders: list[Message] = []
        match event:
            case Output(line=line):
                orders += _receive(line, reader, conductor)
            case NodeEnded(node=node, how=how):
                conductor.node_ended(node, how)
            case Changed(description=description):
                conductor.note(description)
            case JobEnded(end=end):
                conductor.close(end)
                return
        # With each event, also an idle one: nothing else makes a conductor look at the time.
        orders += conductor.tick()
        # After the event and the tick: the verdicts that have arrived count, even if the run ends now.
        if why := stop():
            conductor.fail(JobState.CANCELLED, why)
        _act(run, conductor, orders)
        if conductor.is_over:
            conductor.leave()
            return


def _receive(line: bytes, reader: LineReader, conductor: Conductor) -> Iterable[Message]:
    if not is_ours(line):
        conductor.keep_output(line)
        return []
    orders: list[Message] = []
    try:
        for node, message in reader.feed(line):
            orders += conductor.receive(node, message)
    except ProtocolError as error:
        conductor.fail(JobState.NODE_LOST, str(error))
    return orders


def _act(run: JobRun, conductor: Conductor, orders: Sequence[Message]) -> None:
    if conductor.failure is not None:
        run.cancel(str(conductor.failure))
        return
    for order in orders:
        run.send(encode_order(order))
