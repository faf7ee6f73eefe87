"""The node agent: one process on each node of a job, between the engine and what runs there.

It takes the job from its standard input, starts the work (a whole local run, or a share of spanning worlds), passes
lines both ways, and leaves nothing behind: whatever ends the job, it lets the work say its last words, kills what is
left of its tree (children in sessions of their own too, which engines overlook), and says that it is done. It
restarts nothing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from disttest.cluster.job import JobKind, JobSpec
from disttest.cluster.lease import LeaseWork
from disttest.cluster.place import Place
from disttest.cluster.share_work import ShareWork
from disttest.cluster.wire import (
    ENGINE_ENDED,
    Alive,
    CancelJob,
    LineWriter,
    NodeDone,
    Refused,
    TakeJob,
    Told,
    decode_order,
)
from disttest.errors import DisttestError, ProtocolError
from disttest.host.process import Child, adopt_orphans, kill_descendants, signal_name
from disttest.host.signals import NotedSignals
from disttest.running.protocol import Message

ALIVE_S = 5.0
"""How often an agent says that it lives."""
SILENCE_S = 60.0
"""A client that has said nothing for so long is gone, whatever the engine thinks."""
JOB_LIMIT_S = 60.0
"""From its start to the job's arrival."""
LAST_WORDS_S = 5.0
"""How long the work may take to end in an orderly way, when the job is cancelled."""
FLUSH_S = 3.0
"""How long the last lines may take to leave."""
_TICK_S = 0.1
_CHUNK = 1 << 16
_CANCELLING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Work(Protocol):
    """What an agent supervises."""

    child: Child

    def lines(self) -> Iterator[bytes]:
        """Messages (their JSON) that are there to be passed on."""

    def descriptors(self) -> list[int]:
        """What becomes readable when there may be more."""

    def obey(self, line: bytes) -> None:
        """An order from the client."""

    def cancel(self, reason: str) -> None:
        """Have it end."""

    def obituary(self) -> str:
        """Why it ended, if not as it should have; empty otherwise."""


class Agent:
    """The life of one agent."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._writer = LineWriter(place.node)
        self._out = bytearray()
        self._in = b""
        self._reason = ""
        self._client_gone = False
        self._heard_s = self._said_s = time.monotonic()
        self._cancelled_s: float | None = None
        os.set_blocking(0, False)
        os.set_blocking(1, False)

    def run(self) -> None:
        """Take the job, do it, leave nothing."""
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
                self._say(Refused(host=self._place.host, message=str(error)))
            left = kill_descendants()
            if left:
                self._say(Told(message=f"node {self._place.host}: could not be killed: {left}"))
        self._say(NodeDone(reason=self._reason))
        self._flush(FLUSH_S)

    # --- beginning

    def _take_job(self, signals: NotedSignals) -> JobSpec | None:
        deadline = time.monotonic() + JOB_LIMIT_S
        while not self._reason and time.monotonic() < deadline:
            self._wait([0, signals.fileno()])
            self._note_signal(signals)
            for line in self._receive():
                order = decode_order(line)
                if isinstance(order, TakeJob):
                    return order.job
                if isinstance(order, CancelJob):
                    self._reason = order.reason
                    return None
        self._reason = self._reason or f"no job came within {JOB_LIMIT_S:g} s"
        return None

    def _start(self, job: JobSpec, folder: Path) -> Work:
        place = self._place
        if place.nodes != job.shape.nodes:
            raise ProtocolError(
                f"the job is for {job.shape.nodes} nodes, the engine has started agents on {place.nodes}"
            )
        needs = max(
            (test.world.ranks_per_node for test in job.tests if test.world and test.world.device != "cpu"),
            default=0,
        )
        if needs > len(place.gpus):
            raise ProtocolError(
                f"node {place.host} was granted {len(place.gpus)} GPUs "
                f"(CUDA_VISIBLE_DEVICES={','.join(place.gpus) or 'empty'}), and the job has {needs} ranks for it"
            )
        if job.directory:
            os.chdir(job.directory)
        kind = LeaseWork if job.kind is JobKind.LEASE else ShareWork
        return kind(job, place, folder)

    # --- supervising

    def _supervise(self, work: Work, signals: NotedSignals) -> None:
        while work.child.poll() is None:
            self._wait([0, signals.fileno(), work.child.fileno(), *work.descriptors()])
            self._note_signal(signals)
            for line in self._receive():
                if not self._is_ending(line):
                    work.obey(line)
            self._pass_on(work)
            self._check_client()
            self._end_if_asked(work)
        self._pass_on(work)
        self._reason = self._reason or work.obituary()

    def _is_ending(self, line: bytes) -> bool:
        order = decode_order(line)
        if isinstance(order, CancelJob):
            self._reason = self._reason or order.reason
        return isinstance(order, CancelJob)

    def _pass_on(self, work: Work) -> None:
        for body in work.lines():
            self._out += self._writer.lines(body)
        if time.monotonic() - self._said_s >= ALIVE_S:
            self._say(Alive())
        self._flush(0.0)

    def _check_client(self) -> None:
        if self._client_gone:
            self._reason = self._reason or "the client is gone"
        elif time.monotonic() - self._heard_s > SILENCE_S:
            self._reason = self._reason or f"the client has been silent for {SILENCE_S:g} s"

    def _end_if_asked(self, work: Work) -> None:
        if not self._reason:
            return
        if self._cancelled_s is None:
            self._cancelled_s = time.monotonic()
            work.cancel(self._reason)
        elif time.monotonic() - self._cancelled_s > LAST_WORDS_S:
            work.child.signal(signal.SIGKILL)
            work.child.wait(2.0)

    # --- the lines

    def _say(self, message: Message) -> None:
        self._said_s = time.monotonic()
        self._out += self._writer.lines(msgspec.json.encode(message))
        self._flush(0.0)

    def _flush(self, limit_s: float) -> None:
        """Write what the pipe takes; nobody waits for a client that does not read, but at the very end."""
        deadline = time.monotonic() + limit_s
        while self._out:
            try:
                del self._out[: os.write(1, self._out[:_CHUNK])]
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                with selectors.DefaultSelector() as selector:
                    selector.register(1, selectors.EVENT_WRITE)
                    selector.select(deadline - time.monotonic())
            except OSError:
                self._client_gone = True
                self._out.clear()

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
                self._reason = self._reason or "the client is gone"
                return lines
            self._heard_s = time.monotonic()
            *whole, self._in = (self._in + chunk).split(b"\n")
            lines += [line for line in whole if line]

    def _wait(self, descriptors: list[int]) -> None:
        with selectors.DefaultSelector() as selector:
            for fd in descriptors:
                if fd != 0 or not self._client_gone:
                    selector.register(fd, selectors.EVENT_READ)
            if self._out:
                selector.register(1, selectors.EVENT_WRITE)
            selector.select(_TICK_S)

    def _note_signal(self, signals: NotedSignals) -> None:
        if (number := signals.first()) is not None:
            self._reason = self._reason or f"{ENGINE_ENDED} ({signal_name(number)})"


def own_output() -> None:
    """Whatever else prints in this process goes to standard error: standard output carries messages."""
    sys.stdout = sys.stderr
