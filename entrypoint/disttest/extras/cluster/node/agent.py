"""The node agent: one process on each node of a job, between the scheduler and the work.

It takes the job from its standard input, starts the work (a local run, or a part of worlds that span nodes), and passes
lines both ways. Whatever ends the job, the agent lets the work send its last messages, kills the rest of its process
tree (including children in sessions of their own, which schedulers overlook), and reports that it is done. It restarts
nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from disttest.clock import monotonic
from disttest.errors import DisttestError, ProtocolError, UsageError
from disttest.extras.cluster.limits import (
    AGENT_CANCEL_S,
    AGENT_FLUSH_S,
    CLIENT_SILENCE_S,
    JOB_ARRIVAL_S,
    NODE_ALIVE_S,
)
from disttest.extras.cluster.node.assignment import NodeAssignment
from disttest.extras.cluster.node.work import LeaseWork, PartitionWork
from disttest.extras.cluster.protocol.job import JobKind, JobSpec
from disttest.extras.cluster.protocol.wire import (
    CLIENT_GONE,
    Alive,
    CancelJob,
    LineWriter,
    NodeDone,
    NodeNote,
    Refused,
    SetVariables,
    TakeJob,
    decode_order,
)
from disttest.host.descendants import kill_descendants
from disttest.host.event_loop import NotedSignals, wait_any
from disttest.host.lines import Lines
from disttest.host.oom import Shortage
from disttest.host.process import Child, Exit, adopt_orphans, end_all, signal_name
from disttest.limits import TICK_S
from disttest.options.environment import add_to_environment, environment
from disttest.options.registry import RUN_OPTIONS, secrets_in
from disttest.outgoing import outgoing
from disttest.runtime.messages.protocol import Message

_CHUNK = 1 << 16
_TAIL = 4096
"""Characters of the output that a reason quotes."""
_CANCELLING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Work(Protocol):
    """Work that an agent supervises."""

    title: str
    """The process, for messages."""
    child: Child
    output: Path
    """File with its output."""

    def lines(self) -> Iterator[bytes]:
        """Yield messages (as JSON) to pass on."""

    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable when there may be more messages."""

    def handle_order(self, line: bytes) -> None:
        """Handle an order of the client."""

    def cancel(self, order: CancelJob) -> None:
        """Ask the work to end."""

    def has_failed(self, ended: Exit) -> bool:
        """Return whether it ended irregularly."""


class Agent:
    """One agent."""

    def __init__(self, assignment: NodeAssignment) -> None:
        self._assignment = assignment
        self._writer = LineWriter(assignment.node)
        self.pending = bytearray()
        """Lines that the pipe has not accepted yet."""
        self._in = Lines()
        self._reason = ""
        self._by_scheduler = False
        self._client_gone = False
        self._heard_s = self._said_s = monotonic()
        self._shortage = Shortage()
        self._cancelled_s: float | None = None
        # The agent uses one loop without threads, so no read or write may block.
        os.set_blocking(0, False)
        os.set_blocking(1, False)

    def run(self) -> None:
        """Take the job, run it, and clean up."""
        # https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html
        adopt_orphans()
        with (
            contextlib.closing(NotedSignals(_CANCELLING)) as signals,
            tempfile.TemporaryDirectory(prefix="disttest-node-") as folder,
        ):
            try:
                job = self._take_job(signals)
                if job is not None:
                    self._supervise(self._start(job, Path(folder)), signals)
            except DisttestError as error:
                self._send(Refused(host=self._assignment.host, message=str(error)))
            # Before the last message, which promises that nothing of the job runs on this node any more.
            left = kill_descendants()
            if left:
                self._send(NodeNote(message=f"node {self._assignment.host}: could not be killed: {left}"))
        self._leave_word()
        self._send(NodeDone(reason=self._reason, by_scheduler=self._by_scheduler))
        self.send_rest()

    # --- beginning

    def _take_job(self, signals: NotedSignals) -> JobSpec | None:
        # Nothing is printed until the job comes: an attached client misses earlier output (see `pods.py`).
        while not self._reason and monotonic() - self._heard_s < JOB_ARRIVAL_S:
            self._wait(signals)
            self._note_signal(signals)
            for line in self._receive():
                order = decode_order(line)
                if isinstance(order, TakeJob):
                    return order.job
                if isinstance(order, SetVariables):
                    add_to_environment(order.variables)
                if isinstance(order, CancelJob):
                    self._reason = order.reason
                    return None
        self._reason = self._reason or f"no job came within {JOB_ARRIVAL_S:g} s"
        return None

    def _start(self, job: JobSpec, folder: Path) -> Work:
        assignment = self._assignment
        if assignment.nodes != job.shape.nodes:
            raise ProtocolError(
                f"the job needs {job.shape.nodes} nodes, but the scheduler started agents on {assignment.nodes}"
            )
        needs = max(
            (test.world.ranks_per_node for test in job.tests if test.world and test.world.device != "cpu"),
            default=0,
        )
        # Here, in plain words: ranks would fail with `CUDA error: invalid device ordinal`.
        if needs > len(assignment.gpus):
            raise ProtocolError(
                f"node {assignment.host} was granted {len(assignment.gpus)} GPUs "
                f"(CUDA_VISIBLE_DEVICES={','.join(assignment.gpus) or 'empty'}), but the job has {needs} ranks on it"
            )
        if job.directory:
            self._enter(job.directory)
        job = _without_secrets(job)
        # A plugin may hide secrets; what this process reads of a run has masked names.
        outgoing.hide(secrets_in(environment()))
        kind = LeaseWork if job.kind is JobKind.LEASE else PartitionWork
        return kind(job, assignment, folder)

    def _enter(self, directory: str) -> None:
        try:
            os.chdir(directory)
        except OSError as error:
            raise UsageError(
                f"cannot enter the working directory {directory} ({error.strerror}); choose another one with --node-dir"
            ) from error

    # --- supervising

    def _supervise(self, work: Work, signals: NotedSignals) -> None:
        while work.child.poll() is None:
            self._wait(signals, work.child, *work.descriptors())
            self._note_signal(signals)
            for line in self._receive():
                if not self._is_ending(line):
                    work.handle_order(line)
            self._pass_on(work)
            self._check_client()
            self._end_if_asked(work)
        # Once more: the work may have written between the last look and its end.
        self._pass_on(work)
        self._reason = self._reason or self._exit_reason(work)

    def _exit_reason(self, work: Work) -> str:
        """Return why the work ended irregularly, with the limits that it reached; empty if it did not."""
        ended = work.child.poll()
        if ended is None or not work.has_failed(ended):
            return ""
        tail = work.output.read_text(errors="replace")[-_TAIL:] if work.output.exists() else ""
        words = "; ".join((str(ended), *self._shortage.notes()))
        return f"{work.title} on node {self._assignment.host} ended with {words}:\n{tail}"

    def _is_ending(self, line: bytes) -> bool:
        order = decode_order(line)
        if isinstance(order, CancelJob):
            self._reason = self._reason or order.reason
        return isinstance(order, CancelJob)

    def _pass_on(self, work: Work) -> None:
        for body in work.lines():
            self.pending += self._writer.lines(body)
        if monotonic() - self._said_s >= NODE_ALIVE_S:
            self._send(Alive())
        self._flush()

    def _check_client(self) -> None:
        if self._client_gone:
            self._reason = self._reason or CLIENT_GONE
        elif monotonic() - self._heard_s > CLIENT_SILENCE_S:
            self._reason = self._reason or f"the client has been silent for {CLIENT_SILENCE_S:g} s"

    def _end_if_asked(self, work: Work) -> None:
        if not self._reason:
            return
        if self._cancelled_s is None:
            self._cancelled_s = monotonic()
            work.cancel(CancelJob(reason=self._reason, by_scheduler=self._by_scheduler))
        elif monotonic() - self._cancelled_s > AGENT_CANCEL_S:
            # The work is a session leader. This process adopts its orphans, and kills them later.
            end_all([work.child])

    # --- the lines

    def _leave_word(self) -> None:
        """Leave the reason with the scheduler too: the connection to the client may be the problem."""
        if self._reason and self._assignment.last_word:
            with contextlib.suppress(OSError):
                Path(self._assignment.last_word).write_text(self._reason, "utf-8", "replace")

    def _send(self, message: Message) -> None:
        self._said_s = monotonic()
        self.pending += self._writer.lines(msgspec.json.encode(message))
        self._flush()

    def send_rest(self) -> None:
        """Send the lines that are left, as long as the client reads; after a cancellation for a limited time."""
        until_s = monotonic() + AGENT_FLUSH_S
        while self.pending:
            left = len(self.pending)
            self._flush()
            # A slow link may need minutes for long logs, and the client fails the tests whose results are missing.
            if len(self.pending) < left and self._cancelled_s is None:
                until_s = monotonic() + AGENT_FLUSH_S
            if self.pending and not wait_any(None if self._client_gone else 0, writable=[1], until_s=until_s):
                return
            if any(self._is_ending(line) for line in self._receive()):
                self._cancelled_s = monotonic()

    def _flush(self) -> None:
        """Write what the pipe accepts. A client that does not read is not waited for."""
        while self.pending:
            try:
                del self.pending[: os.write(1, self.pending[:_CHUNK])]
            except BlockingIOError:
                return
            except OSError:
                self._client_gone = True
                self.pending.clear()

    def _receive(self) -> list[bytes]:
        lines: list[bytes] = []
        while True:
            try:
                chunk = os.read(0, _CHUNK)
            except BlockingIOError:
                return lines
            except OSError:
                chunk = b""
            if not chunk:
                self._client_gone = True
                self._reason = self._reason or CLIENT_GONE
                return lines
            self._heard_s = monotonic()
            lines += filter(None, self._in.feed(chunk))

    def _wait(self, *sources: NotedSignals | Child | int) -> None:
        # An input that has ended stays readable, and the loop would spin.
        orders = None if self._client_gone else 0
        wait_any(orders, *sources, writable=[1] if self.pending else [], timeout_s=TICK_S)

    def _note_signal(self, signals: NotedSignals) -> None:
        # An earlier reason counts: Slurm also signals the agents of a job that the client has cancelled.
        if (number := signals.first()) is not None and not self._reason:
            self._reason, self._by_scheduler = f"the scheduler ended the job ({signal_name(number)})", True


def _without_secrets(job: JobSpec) -> JobSpec:
    """Move secret options of a job into variables, because other users see flags in the list of processes."""
    secret = {option.field: option for option in RUN_OPTIONS if option.secret}
    for name in secret.keys() & job.flags.keys():
        variable = secret[name].variable
        # The values of both count.
        both = filter(None, (job.flags[name], environment().get(variable)))
        add_to_environment({variable: "\n".join(both)})
    flags = {name: text for name, text in job.flags.items() if name not in secret}
    return msgspec.structs.replace(job, flags=flags)


def own_output() -> None:
    """Redirect other output of this process to standard error: standard output carries messages."""
    # Only Python's object: the agent writes to descriptor 1 itself.
    sys.stdout = sys.stderr
