"""Work of an agent.

With a lease, it is a local run, whose journal and logs are sent while they are written. With a part of worlds that span
nodes, it is a pytest process that collects and forks ranks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from disttest.clock import monotonic
from disttest.descriptors import append_to
from disttest.extras.cluster import NAME
from disttest.extras.cluster.node.assignment import NodeAssignment
from disttest.extras.cluster.node.live_lines import LiveLines
from disttest.extras.cluster.node.partition import PartitionOrder, log_texts
from disttest.extras.cluster.option_rows import ASSIGNED
from disttest.extras.cluster.protocol.fingerprint import digest_tests, versions_here
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.wire import CancelJob, JournalLine, NodeReady
from disttest.host.lines import Lines
from disttest.host.process import Exit, spawn_child
from disttest.model import Outcome, TestCase, TestResult
from disttest.options.environment import hash_seed
from disttest.options.registry import RUN_OPTIONS
from disttest.planning.targets import resolve_targets
from disttest.planning.timings import UNKNOWN_S
from disttest.results.events import (
    AnyEvent,
    CollectionFailed,
    Event,
    Noted,
    RunStarted,
    TestCollected,
    TestFinished,
    TestStarted,
)
from disttest.results.journal import FILE_NAME, JournalFollower, run_clock
from disttest.runtime.controller.orders import PluginOrder, Shared, given_order
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.messages.protocol import Message
from disttest.runtime.supervisor.run_supervisor import pytest_command

_CHUNK = 1 << 16


class PartitionWork:
    """A pytest process for a node's part of worlds (see :mod:`disttest.extras.cluster.node.partition`)."""

    title = "pytest"

    def __init__(self, job: JobSpec, assignment: NodeAssignment, folder: Path) -> None:
        self._job = job
        self.output = folder / "pytest.log"
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._said = Lines()
        self._at_end = False
        flags = {**job.flags, "results": str(folder / "results")}
        (folder / "results").mkdir()
        argv = pytest_command(
            resolve_targets(job.targets),
            flags,
            [
                *job.pytest_arguments,
                # Agents may share home and checkout, where pytest keeps temporary folders and its cache.
                f"--basetemp={folder / 'tmp'}",
                "-p",
                "no:cacheprovider",
            ],
        )
        log = append_to(self.output)
        seed = hash_seed(int(job.flags.get("seed", "") or 0))  # the same on all nodes
        order = PluginOrder(
            shared=Shared(
                supervisor=os.getpid(),
                host=msgspec.json.decode(job.collected_for, type=TargetHost) if job.collected_for else None,
                data={NAME: [test.nodeid for test in job.tests]},
            ),
            plugin=NAME,
            work=PartitionOrder(job=job, assignment=assignment, fd=theirs.fileno()),
        )
        with given_order(order, theirs.fileno()) as (argument, descriptors):
            self.child = spawn_child(
                [*argv, argument],
                extra_env=seed,
                pass_fds=descriptors,
                stdout=log,
                new_session=True,
            )
        os.close(log)
        # This copy would hide the end of pytest, for which the socket must close.
        theirs.close()
        self._line.setblocking(False)

    def descriptors(self) -> list[int]:
        """Return the socket of the pytest process."""
        return [] if self._at_end else [self._line.fileno()]

    def lines(self) -> Iterator[bytes]:
        """Yield its messages."""
        with contextlib.suppress(BlockingIOError):
            while not self._at_end:
                # A pytest that was killed with unread orders resets the connection: that is an end, too.
                chunk = self._receive()
                self._at_end = not chunk
                yield from filter(None, self._said.feed(chunk))

    def _receive(self) -> bytes:
        try:
            return self._line.recv(_CHUNK)
        except ConnectionResetError:
            return b""

    def handle_order(self, line: bytes) -> None:
        """Pass an order on; orders are short, and the process always reads them."""
        self._line.setblocking(True)
        with contextlib.suppress(OSError):
            self._line.sendall(line + b"\n")
        self._line.setblocking(False)

    def cancel(self, order: CancelJob) -> None:
        """Ask it to end its world, with evidence."""
        self.handle_order(msgspec.json.encode(order))

    def has_failed(self, ended: Exit) -> bool:
        """Return whether pytest ended otherwise than after tests, or without any."""
        return ended.code not in (0, 1, 5)


_HEAD = (RunStarted, TestCollected, CollectionFailed, Noted)
"""Events before the first test runs."""


def timings_journal(job: JobSpec) -> bytes:
    """Encode the client's timings as the journal of an earlier run."""
    events: list[Event] = []
    expected_s = job.expected_s or (UNKNOWN_S,) * len(job.tests)
    for number, (test, seconds) in enumerate(zip(job.tests, expected_s, strict=True)):
        events.append(TestCollected(at_s=0.0, test=test))
        passed = TestResult(nodeid=test.nodeid, outcome=Outcome.PASSED, duration_s=seconds)
        events.append(TestFinished(at_s=0.0, result=passed))
        if number in job.failed:  # later than the pass
            again = TestResult(nodeid=test.nodeid, outcome=Outcome.FAILED, started_at_s=1.0)
            events.append(TestFinished(at_s=1.0, result=again))
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


class LeaseWork:
    """``disttest run`` on this node, for the tests of the job."""

    title = "the run"

    def __init__(self, job: JobSpec, assignment: NodeAssignment, folder: Path) -> None:
        self._job = job
        self._assignment = assignment
        self._results = folder / "results"
        self.output = folder / "run.log"
        self._clock = run_clock()
        self._journal: JournalFollower | None = None
        self._root = Path.cwd()
        self._assigned = {test.nodeid for test in job.tests}
        self._collected: dict[str, TestCase] = {}
        self._live = LiveLines(self._results, monotonic, asked=job.live_output)
        self._ready = False
        only = folder / "tests.json"
        only.write_bytes(msgspec.json.encode([test.nodeid for test in job.tests]))
        log = append_to(self.output)
        settings = {
            # Settings without a flag reach the run as variables.
            option.variable: job.flags[option.field]
            for option in RUN_OPTIONS
            if option.no_flag and job.flags.get(option.field)
        }
        argv = self._argv(only, folder)
        self.child = spawn_child(argv, stdout=log, new_session=True, extra_env=settings)
        os.close(log)

    def _argv(self, only: Path, folder: Path) -> list[str]:
        job = self._job
        flags = {"slots": str(job.shape.ranks_per_node), **job.flags, "results": str(self._results)}
        given = [
            f"--{option.name}={flags[option.field]}"
            for option in RUN_OPTIONS
            if flags.get(option.field) and not option.no_flag
        ]
        given.append(f"{ASSIGNED.flag}={only}")
        inner = [f"--basetemp={folder / 'tmp'}", "-p", "no:cacheprovider"]
        if job.live_output:
            # The logs of ranks are followed; the output of ordinary tests belongs to their reports.
            inner.append("--capture=fd")
        if job.expected_s or job.failed:
            timings = folder / "timings.jsonl"
            timings.write_bytes(timings_journal(job))
            given += [f"--timings={timings}", *(["--failed-first"] if job.failed else [])]
        return [
            sys.executable,
            "-m",
            "disttest",
            "run",
            *given,
            *job.targets,
            "--",
            *job.pytest_arguments,
            *inner,
        ]

    def descriptors(self) -> list[int]:
        """Return none: a journal is a file, and is polled every tick."""
        return []

    def lines(self) -> Iterator[bytes]:
        """Yield new events of the journal, the logs of finished tests, and the output of running ranks."""
        for event in self._new_events():
            yield from map(msgspec.json.encode, self._messages(event))
        yield from map(msgspec.json.encode, self._live.poll())

    def _messages(self, event: AnyEvent) -> Iterator[Message]:
        if isinstance(event, RunStarted):
            self._root = Path(event.root)
        if isinstance(event, TestCollected):
            if event.test.nodeid not in self._assigned:
                # A file that skipped itself. The client has listed it, and the digest counts assigned tests.
                return
            self._collected[event.test.nodeid] = event.test
        if isinstance(event, TestFinished) and event.result.nodeid not in self._assigned:
            return
        # The digest covers all collected tests, so this waits for the first event after the collection.
        if not self._ready and not isinstance(event, _HEAD):
            self._ready = True
            yield self._introduction()
        if isinstance(event, TestStarted) and (test := self._collected.get(event.nodeid)) is not None:
            self._live.begin(test.nodeid, test.log_folder(event.attempt))
        if isinstance(event, TestFinished):
            yield from self._live.end(event.result.nodeid)
        yield JournalLine(event=event)
        if isinstance(event, TestFinished):
            yield from log_texts(self._results, event.result.ranks)

    def _introduction(self) -> NodeReady:
        return NodeReady(
            host=self._assignment.host,
            at_s=self._clock(),
            versions=versions_here(self._job.pytest_arguments),
            digest=digest_tests(self._collected.values(), self._root),
            gpus=self._assignment.gpus,
        )

    def _new_events(self) -> Iterable[AnyEvent]:
        journal = self._results / FILE_NAME
        # The run makes its journal some time after its start.
        if self._journal is None and journal.exists():
            self._journal = JournalFollower(journal)
        # The follower notes an unreadable line, which a killed process may leave behind.
        return self._journal.new_events() if self._journal else ()

    def handle_order(self, line: bytes) -> None:
        """Ignore orders: a lease knows only the end."""

    def cancel(self, order: CancelJob) -> None:
        """Ask the run to end; it completes its journal."""
        del order
        self.child.signal(signal.SIGTERM)

    def has_failed(self, ended: Exit) -> bool:
        """Return whether it ended without events of tests."""
        del ended
        return not self._ready
