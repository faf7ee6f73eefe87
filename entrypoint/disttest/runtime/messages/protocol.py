"""What the processes of a run say to each other, and the channel that carries it.

Messages are tagged JSON behind a length of four bytes, over one socket pair per child. JSON and not
pickle: whatever a broken rank writes into its socket, the reader gets a named error and runs no code.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, dataclass_transform

import msgspec

from disttest.errors import ProtocolError
from disttest.masking import masker
from disttest.model import (
    UNREADABLE,
    CpuStep,
    Frozen,
    HangCause,
    Outcome,
    RankRecord,
    Recorded,
    TestCase,
    TestResult,
    WorldKind,
)
from disttest.options.run import WorldSettings
from disttest.results.directory import Home

MAX_MESSAGE = 64 * 1024 * 1024
_HEADER = struct.Struct(">I")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=True):
    """Base of all messages."""


class RankReady(Message):
    """Rank to world: it is up and has its tests."""


class Collected(Message):
    """Rank to world: what it has collected, as a fresh interpreter and no copy of another process."""

    tests: dict[str, str]
    """Node id -> the values of its parameters, in words."""


class Raised(Frozen):
    """An exception, described without running any code of the test."""

    message: str
    """The type and, if reading it runs no code of the test, the text."""
    place: str
    """``test_step.py:39``: the innermost line outside libraries; empty if there is none."""
    details: str
    """The traceback without values."""
    is_assertion: bool = False
    """An assertion that has failed and whose message is being made: it is not raised yet."""

    @property
    def with_place(self) -> str:
        """The message and, if it is known, the place."""
        return f"{self.message} ({self.place})" if self.place else self.message


class RunStop(Frozen):
    """A test has ended the run (``pytest.exit``, ``KeyboardInterrupt``)."""

    reason: str
    exit_code: int


class PhaseEnded(Message):
    """Rank to world: one pytest report (a phase, or a subtest)."""

    phase: str
    outcome: Outcome
    duration_s: float
    ended_at_s: float
    """Monotonic clock, which all processes of a machine share; taken before the report was formatted."""
    message: str = ""
    details: str = ""
    partial: bool = False
    """A subtest: the test goes on after it."""
    stop: RunStop | None = None
    because_of: tuple[int, ...] = ()
    """The ranks that had not joined the call in which it failed; sent with ``unrendered``, as is the next one."""
    held_back: Raised | None = None
    """The exception that a block was holding back when it lost a peer."""
    unrendered: bool = False
    """The phase has failed and its report is being rendered, which runs code of the test. The report follows."""
    report: str = ""
    """The report in pytest's serialisable form, as JSON."""


class RankNoted(Message):
    """Rank to world: data of a plugin, sent while the test runs; perhaps the last word of the rank."""

    name: str
    """Of the plugin."""
    data: msgspec.Raw


class TestRecorded(Message):
    """Rank to world: warnings and facts of the running test."""

    __test__ = False

    recorded: Recorded


class TestDone(Message):
    """Rank to world: the whole protocol of the test has run."""

    __test__ = False

    leaks: tuple[str, ...] = ()
    retire: bool = False
    """What leaked cannot be cleaned: no further test may run in this process."""
    store_keys: tuple[str, ...] = ()
    """Keys that the test has left in the store of the world, which deletes them once all ranks are done."""
    broken: tuple[str, ...] = ()
    """What makes process groups unusable for the next test; it matters only if this test has not failed."""
    exit_code: int | None = None
    """The rank leaves with this code, now; None: it stays for the next order."""
    stays: bool = False
    """It would leave with that code if it were not to run another test."""
    seen: dict[str, msgspec.Raw] = {}
    """Name of a plugin -> what its part in the rank reports of the test."""
    plugin_error: str = ""
    """A plugin raised an exception beside the test: the message, and the traceback on further lines."""
    cpu_steps: tuple[CpuStep, ...] = ()
    """What this rank has taken since it last said so, where that was asked."""


class RanksJoined(Message):
    """Main process of a test to world: what the ranks did that it started by itself."""

    records: tuple[RankRecord, ...]
    torch_outcome: Outcome | None = None
    """What torch's own harness would have said; None where that cannot be known."""
    threads: bool = False
    """They are threads of the main process; it has caught what they raised if it passes all the same."""
    cause: HangCause | None = None
    """Why they could not go on, if the watch of a plugin has found that."""
    plugin_error: str = ""
    """As of :class:`TestDone`, of a plugin that watches them."""
    superseded: bool = False
    """They had run another test before and failed this one, which now begins again in new ranks."""
    outdated: str = ""
    """They are new because living ones had not inherited this, which the main process has changed since."""


Variables = tuple[tuple[bytes, bytes | None], ...]
"""Of the environment, with their values; None for one that is gone."""


class RunTest(Message):
    """World to rank: run this test now."""

    nodeid: str
    next_nodeid: str | None
    """The test that follows in this world; fixtures that it shares stay set up."""
    log: str
    """Absolute path that this rank writes its log to."""
    scratch: str
    """Absolute path of the directory that the ranks share during this test."""
    generation: int
    """Counts the tests of this world; names the rendezvous of a group that is made anew."""
    limit_s: float = 0.0
    """How long the test may take; for processes that supervise ranks of their own."""
    data: dict[str, Any] = {}
    """Name of a plugin -> its data of the test."""
    folder: str = ""
    """Where the logs of this attempt come to lie, relative to the results directory; for the same."""
    reuse: bool = False
    """Ranks that the test starts may have run another one; for the same."""
    method: str = ""
    """Of the class whose ranks these are; for ranks that a main process has started."""
    file_name: str = ""
    """Where those find each other."""
    variables: Variables = ()
    """What has changed in the environment of the main process since they were told last."""


class Leave(Message):
    """World to rank: tear down what is still set up, and end."""


class WorldUp(Message):
    """World to controller: its ranks are up, as far as they ever will be. Only worlds that span nodes say so."""


class RankFailedFirst(Message):
    """World to controller: a rank has failed or died; the ranks on other nodes must not wait for it."""


class EvidenceReady(Message):
    """World to controller: the deadline has passed and the ranks here have told what they were doing."""


class RunNext(Message):
    """Controller to world: all nodes are ready, run the next test; only to worlds that span nodes."""


class PeerFailed(Message):
    """Controller to world: a rank on another node has failed."""


class EvidenceAgreed(Message):
    """Controller to world: every node has its evidence, the ranks may be ended."""


class Dismiss(Message):
    """Controller to world: no further test, let the ranks leave."""


class TestBegan(Message):
    """World to controller: a test starts now."""

    __test__ = False

    nodeid: str
    again: bool = False
    """Within its attempt: its time limit, too, begins anew."""


class TestJudged(Message):
    """World to controller: the verdict, with the pytest reports of the rank that stands for the test."""

    __test__ = False

    result: TestResult
    reports: tuple[str, ...] = ()
    stop: RunStop | None = None
    healthy: bool = True
    """Whether the world can run another test; said by worlds that span nodes."""


class WorldClosed(Message):
    """World to controller: its ranks are gone; the last message."""

    reason: str = ""
    notes: tuple[str, ...] = ()
    """What it found when it closed: processes left behind, ranks that would not leave."""
    leftovers: tuple[tuple[str, str], ...] = ()
    """Node id of the test and what it left behind, for what had to be cleaned up after it."""
    survivors: tuple[int, ...] = ()
    """Pids that could not be killed; their slots must not be used again."""
    cpu_steps: tuple[CpuStep, ...] = ()
    """What it and its ranks have taken, where that was asked."""


class Cancel(Message):
    """Controller to world: end now, with evidence."""

    reason: str


AnyMessage = (
    WorldUp
    | RankFailedFirst
    | EvidenceReady
    | RunNext
    | PeerFailed
    | EvidenceAgreed
    | Dismiss
    | RankReady
    | Collected
    | PhaseEnded
    | RankNoted
    | TestRecorded
    | TestDone
    | RanksJoined
    | RunTest
    | Leave
    | TestBegan
    | TestJudged
    | WorldClosed
    | Cancel
)

_decoder: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)
_encoder = msgspec.json.Encoder()


class NodePartition(Frozen):
    """Which part of a world that spans nodes is on this one."""

    node: int
    """Counted from 0; node 0 hosts the rendezvous."""
    nodes: int
    first_rank: int
    ranks: int
    address: str
    """Where the ranks of all nodes find the rendezvous."""
    port: int
    interface: str
    """The network interface that reaches the other nodes."""
    shared_dir: str = ""
    """A directory that all nodes see; empty when there is none."""


class WorldOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a world is told when it is forked; all paths are absolute."""

    world_id: str
    tests: tuple[TestCase, ...]
    attempts: tuple[int, ...]
    """The attempt number of each test."""
    devices: tuple[str, ...]
    """UUIDs or indices of the GPUs it may see; empty on the CPU."""
    defaults: dict[str, str] = {}
    """Variables of its ranks' environment, unless the user has set them."""
    home: Home
    """The results directory."""
    scratch_dir: str
    settings: WorldSettings
    threads: int
    """Compute threads of each rank."""
    failed_before: dict[int, int] = {}
    """Rank -> its failed tests in earlier worlds of the run; ranks without any are left out."""
    partition: NodePartition | None = None
    """None: the whole world is on this machine."""
    settled: dict[str, Any] = {}
    """Name of a plugin -> its data for every process of the world, as JSON."""

    @property
    def forks(self) -> int:
        """How many processes it makes, its own included: tests that start ranks by themselves do so one after another."""
        first = self.tests[0]
        size = first.world.size if first.world else 0
        in_turn = {WorldKind.RANKS: size, WorldKind.MAIN: 1 + size * len(self.tests)}
        return 1 + in_turn.get(first.kind, 1)


# Bytes that wait for company at most.
_HELD_LIMIT = 64 * 1024


def clean_text(text: str) -> str:
    """The text without values that are to be hidden, lone surrogates escaped, so that it can be encoded."""
    return masker.text(text).encode("utf-8", "backslashreplace").decode("utf-8") if text else text


def encode(message: Message) -> bytes:
    """A message as bytes, length first."""
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE:
        raise ProtocolError(
            f"{type(message).__name__} of {len(body)} bytes is over the limit of {MAX_MESSAGE}"
        )
    return _HEADER.pack(len(body)) + body


class Channel:
    """One end of a socket pair; sends whole messages, receives what has arrived."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._held = bytearray()
        self.closed_by_peer = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two connected ends: the parent's, and the child's."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def hold(self, message: Message) -> None:
        """Keep a message for company: it goes with the next one, so that the other end wakes up once for both."""
        self._held += encode(message)
        if len(self._held) > _HELD_LIMIT:
            self.flush()

    def send(self, message: Message) -> bool:
        """Send a message, waiting until it is handed over; False when the other end is gone."""
        self._held += encode(message)
        return self.flush()

    def flush(self) -> bool:
        """Hand over what was held, waiting until it is; False when the other end is gone."""
        data, self._held = self._held, bytearray()
        if self._sock.fileno() < 0:
            self.closed_by_peer = True
            return False
        try:
            self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.closed_by_peer = True
            return False
        return True

    def receive(self, *, wait: bool = True) -> Sequence[AnyMessage]:
        """Read what there is (or wait for something) and return the messages that it completes.

        Raises:
            BlockingIOError: nothing is there, and it was not to wait.
            ProtocolError: cut, too long, or not a message.
        """
        try:
            chunk = self._sock.recv(1 << 16, 0 if wait else socket.MSG_DONTWAIT)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self.closed_by_peer = True
            if self._buffer:
                raise ProtocolError(f"message cut after {len(self._buffer)} bytes")
            return ()
        self._buffer += chunk
        return self._complete_messages()

    def _complete_messages(self) -> list[AnyMessage]:
        messages = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > MAX_MESSAGE:
                raise ProtocolError(f"announced {length} bytes, more than any message has: not a message")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return messages

    def close(self) -> None:
        """Close this end; nothing can be said or heard through it any more."""
        self._sock.close()
        self.closed_by_peer = True


def _decode(body: bytes) -> AnyMessage:
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"not a message ({error}): {body[:80]!r}") from error
