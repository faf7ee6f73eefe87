"""A node's agent by itself: it refuses what it cannot do, and ends when nobody wants it any more."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from lab import Lab

from disttest.extras.cluster.protocol.job import JobKind, JobShape, JobSpec
from disttest.extras.cluster.protocol.wire import (
    CancelJob,
    LineReader,
    NodeDone,
    Refused,
    TakeJob,
    encode_order,
)
from disttest.runtime.messages.protocol import Message

JOB = JobSpec(
    job_id="j1",
    run_id="r",
    kind=JobKind.LEASE,
    shape=JobShape(nodes=2, ranks_per_node=1),
    tests=(),
    targets=("smoke",),
    limit_s=60.0,
)


class Node:
    """An agent, and what it says."""

    def __init__(self, lab: Lab) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "disttest", "node-agent"],
            cwd=lab.folder,
            env=lab.environ | {"DISTTEST_NODE": "0", "DISTTEST_NODES": "1", "DISTTEST_NODE_NAME": "n1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def last_words(self, given: bytes = b"") -> list[Message]:
        """All that it says until it ends."""
        said, _ = self.process.communicate(given, timeout=60)
        reader = LineReader()
        return [message for line in said.splitlines() for _, message in reader.feed(line)]


@pytest.fixture
def start(lab: Lab) -> Iterator[Callable[[], Node]]:
    started: list[Node] = []

    def one() -> Node:
        started.append(Node(lab))
        return started[-1]

    yield one
    for node in started:
        node.process.kill()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", [NodeDone(reason="the client is gone")]),
        (encode_order(CancelJob(reason="enough")), [NodeDone(reason="enough")]),
    ],
    ids=["client gone", "cancelled"],
)
def test_without_a_job_it_says_why_it_leaves(
    start: Callable[[], Node], given: bytes, said: list[Message]
) -> None:
    assert start().last_words(given) == said


def test_the_schedulers_signal_is_named(start: Callable[[], Node]) -> None:
    node = start()
    assert node.process.stdin is not None
    node.process.stdin.write(b"\n")
    node.process.stdin.flush()
    caught = _signals_caught(node.process.pid)
    while not caught() & 1 << (signal.SIGTERM - 1):
        assert node.process.poll() is None
    node.process.send_signal(signal.SIGTERM)
    (done,) = node.last_words()
    assert isinstance(done, NodeDone)
    assert (done.reason, done.by_scheduler) == ("the scheduler ended the job (SIGTERM)", True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"[]\n", "the client sent an invalid order"),
        (encode_order(TakeJob(job=JOB)), "the job needs 2 nodes, but the scheduler started agents on 1"),
    ],
    ids=["nonsense", "another number of nodes"],
)
def test_what_it_can_not_do_is_refused(start: Callable[[], Node], given: bytes, words: str) -> None:
    refused, done = start().last_words(given)
    assert isinstance(refused, Refused)
    assert refused.host == "n1"
    assert words in refused.message
    assert isinstance(done, NodeDone)


def _signals_caught(pid: int) -> Callable[[], int]:
    def read() -> int:
        with open(f"/proc/{pid}/status") as status:
            return int(next(line for line in status if line.startswith("SigCgt")).split()[1], 16)

    return read
