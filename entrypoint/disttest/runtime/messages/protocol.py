"""Messages between the processes of a run, and the channel that carries them.

A message is tagged JSON after a four-byte length, over one socket pair per child. JSON instead of pickle: whatever a
broken rank writes into its socket, the reader raises a named error and runs no code.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, dataclass_transform

import msgspec

from disttest.errors import ProtocolError
from disttest.model import (
    UNREADABLE,
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
from disttest.outgoing import outgoing, shorten_all
from disttest.results.directory import Home

MAX_MESSAGE = 64 * 1024 * 1024
_CHUNK = 1 << 16
_HEADER = struct.Struct(">I")


# Typed JSON, not pickle: a rank that fails may write anything into its socket, and unpickling would run it.
# docs/decisions/0007-typed-json-messages.md
@dataclass_transform(frozen_default=True, kw_only_default=True)
class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=True):
    """Base of all messages."""


class RankReady(Message):
    """Rank to world: the rank is up and has its tests."""


class Collected(Message):
    """Rank to world: the tests that it has collected, in a fresh interpreter."""

    tests: dict[str, str]
    """Node id -> values of its parameters, as text."""


class Raised(Frozen):
    """An exception, described without running any code of the test."""

    message: str
    """The type and, if reading it runs no code of the test, the text."""
    place: str
    """``test_step.py:39``: the innermost line outside libraries; empty if there is none."""
    details: str
    """The traceback without values."""
    is_assertion: bool = False
    """Whether it is a failed assertion whose message is being built: it is not raised yet."""

    @property
    def with_place(self) -> str:
        """The message, followed by the place if it is known."""
        return f"{self.message} ({self.place})" if self.place else self.message


class RunStop(Frozen):
    """The end of the run, requested by a test (``pytest.exit``, ``KeyboardInterrupt``)."""

    reason: str
    exit_code: int


class PhaseEnded(Message):
    """Rank to world: one pytest report (a phase or a subtest)."""

    phase: str
    outcome: Outcome
    duration_s: float
    ended_at_s: float
    """Monotonic clock, which all processes of a machine share; read before the report was formatted."""
    message: str = ""
    details: str = ""
    strict: bool = False
    """Whether the test passed although it has a strict xfail mark."""
    partial: bool = False
    """A subtest: the test continues after it."""
    stop: RunStop | None = None
    because_of: tuple[int, ...] = ()
    """Ranks that had not joined the failed call. Sent with ``unrendered``, as is ``held_back``."""
    held_back: Raised | None = None
    """The exception that a block delayed when it lost a peer."""
    unrendered: bool = False
    """The phase has failed and its report, whose rendering runs code of the test, will follow."""
    report: str = ""
    """The report in pytest's serialisable form, as JSON."""


class TornDown(Message):
    """Rank to world, before it leaves: the fixtures that outlived its last test are torn down."""

    failure: PhaseEnded | None = None


class RankNoted(Message):
    """Rank to world: data of a plugin, sent during the test; it may be the rank's last message."""

    name: str
    """Name of the plugin."""
    data: msgspec.Raw


class TestRecorded(Message):
    """Rank to world: warnings and properties of the running test."""

    __test__ = False

    recorded: Recorded


class TestDone(Message):
    """Rank to world: the whole protocol of the test has run."""

    __test__ = False

    leaks: tuple[str, ...] = ()
    retire: bool = False
    """A leak could not be restored: no further test may run in this process."""
    store_keys: tuple[str, ...] = ()
    """Keys that the test left in the world's store; the world deletes them when all ranks are done."""
    broken: tuple[str, ...] = ()
    """Reasons why process groups are unusable for the next test; ignored after a failure."""
    exit_code: int | None = None
    """Code with which the rank exits now; None if it stays for the next order."""
    stays: bool = False
    """Whether the rank stays although a new one would exit with this code."""
    shares: bool = False
    """Whether fixtures of a wider scope are still set up, or a conftest has hooks for the end of the process."""
    seen: dict[str, msgspec.Raw] = {}
    """Plugin name -> report of its part in the rank."""
    plugin_error: str = ""
    """Exception of a plugin: the message, and the traceback on further lines."""


class RanksJoined(Message):
    """Main process to world: records of the ranks that the test started."""

    records: tuple[RankRecord, ...]
    torch_outcome: Outcome | None = None
    """Outcome by torch's own rules; None if it cannot be known."""
    threads: bool = False
    """Whether they are threads; the main process has caught their exceptions if it passes."""
    ignored: bool = False
    """Whether the main process has seen nothing of how these threads ended."""
    cause: HangCause | None = None
    """Reason why they could not make progress, if the watch of a plugin found one."""
    plugin_error: str = ""
    """As in :class:`TestDone`, from a plugin that watches the ranks."""
    superseded: bool = False
    """Whether reused ranks failed this test, which now starts again in new ranks."""
    outdated: str = ""
    """Change of the main process because of which new ranks were needed; living ones had not inherited it."""


Variables = tuple[tuple[bytes, bytes | None], ...]
"""Environment variables with their values; None for a deleted one."""


class RunTest(Message):
    """World to rank: run this test now."""

    nodeid: str
    next_nodeid: str | None
    """The next test in this world; fixtures that both share stay set up."""
    log: str
    """Absolute path of the rank's log."""
    scratch: str
    """Absolute path of the directory that the ranks share during this test."""
    generation: int
    """Number of this test in its world; names the rendezvous of a newly created group."""
    limit_s: float = 0.0
    """Time limit of the test, for processes that supervise ranks."""
    data: dict[str, Any] = {}
    """Plugin name -> its data of the test."""
    folder: str = ""
    """Final folder of this attempt's logs, relative to the results directory, for processes that supervise ranks."""
    reuse: bool = False
    """Whether ranks that the test starts may have run another one, for processes that supervise ranks."""
    method: str = ""
    """Method of the test class, for ranks that a main process has started."""
    file_name: str = ""
    """File through which those ranks find each other."""
    variables: Variables = ()
    """Changes of the main process's environment since the previous order."""


class Leave(Message):
    """World to rank: tear down the remaining fixtures, and end."""


class WorldUp(Message):
    """World to controller: all ranks that will come up are up. Sent only by worlds that span nodes."""


class RankFailedFirst(Message):
    """World to controller: a rank failed or died, so that ranks on other nodes must not wait for it."""


class EvidenceReady(Message):
    """World to controller: the deadline has passed, and the evidence of the ranks here is complete."""


class RunNext(Message):
    """Controller to world: all nodes are ready, run the next test. Sent only to worlds that span nodes."""


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
    """Whether it restarts within its attempt, and its time limit with it."""


class TestJudged(Message):
    """World to controller: the result, with the pytest reports of the rank that represents the test."""

    __test__ = False

    result: TestResult
    reports: tuple[str, ...] = ()
    stop: RunStop | None = None
    healthy: bool = True
    """Whether the world can run another test; set by worlds that span nodes."""
    plugin_error: str = ""
    """Exception of a plugin, as in :class:`TestDone`; set by worlds that span nodes, whose client judges."""


class WorldClosed(Message):
    """World to controller: its ranks have ended; the last message."""

    reason: str = ""
    notes: tuple[str, ...] = ()
    """Findings at the end: processes left behind, ranks that would not leave."""
    leftovers: tuple[tuple[str, str], ...] = ()
    """Node id and description of each thing that a test left and the world cleaned up."""
    survivors: tuple[int, ...] = ()
    """Pids that could not be killed; their slots must not be used again."""
    plugin_error: str = ""
    """Error of a plugin that watches the machine; it ends the run."""


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
    | TornDown
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
    """The part of a spanning world on this node."""

    node: int
    """Index of the node; node 0 hosts the rendezvous."""
    nodes: int
    first_rank: int
    ranks: int
    address: str
    """Address at which the ranks of all nodes find the rendezvous."""
    port: int
    interface: str
    """The network interface that reaches the other nodes."""
    shared_dir: str = ""
    """A directory that all nodes share; empty if there is none."""


class WorldOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order of a world, passed when it is forked; all paths are absolute."""

    world_id: str
    tests: tuple[TestCase, ...]
    attempts: tuple[int, ...]
    """Attempt number of each test."""
    devices: tuple[str, ...]
    """UUIDs or indices of the GPUs it may see; empty on the CPU."""
    defaults: dict[str, str] = {}
    """Environment variables of its ranks, which a value set by the user overrides."""
    home: Home
    """The results directory."""
    scratch_dir: str
    settings: WorldSettings
    threads: int
    """Compute threads of each rank, unless the user sets OMP_NUM_THREADS."""
    failed_before: dict[int, int] = {}
    """Rank -> its failed tests in earlier worlds of the run; ranks without any are left out."""
    partition: NodePartition | None = None
    """None if the whole world is on this machine."""
    settled: dict[str, Any] = {}
    """Plugin name -> its JSON data for every process of the world."""

    @property
    def forks(self) -> int:
        """Number of processes it forks, including its own; tests that start ranks do so one after another."""
        first = self.tests[0]
        size = first.world.size if first.world else 0
        in_turn = {WorldKind.RANKS: size, WorldKind.MAIN: 1 + size * len(self.tests)}
        return 1 + in_turn.get(first.kind, 1)


# Maximum number of bytes that wait for the next message.
_HELD_LIMIT = 64 * 1024


def clean_text(text: str) -> str:
    """Mask secrets and escape lone surrogates, so that the text can be encoded."""
    return outgoing.text(text).encode("utf-8", "backslashreplace").decode("utf-8") if text else text


def encode(message: Message) -> bytes:
    """Encode a message, length first; texts that are too long are cut.

    Raises:
        ProtocolError: the message is too long with short texts.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE:
        body = _encoder.encode(shorten_all(msgspec.to_builtins(message)))
    if len(body) > MAX_MESSAGE:
        raise ProtocolError(
            f"{type(message).__name__} of {len(body)} bytes is over the limit of {MAX_MESSAGE}"
        )
    return _HEADER.pack(len(body)) + body


class Channel:
    """One end of a socket pair: sends whole messages, receives what has arrived."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._held = bytearray()
        self.closed_by_peer = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Create two connected ends: the parent's, and the child's."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def hold(self, message: Message) -> None:
        """Queue a message until the next one, so that the other end wakes up once for both."""
        self._held += encode(message)
        if len(self._held) > _HELD_LIMIT:
            self.flush()

    def send(self, message: Message) -> bool:
        """Send a message and wait until it is handed over; return False if the other end is closed."""
        self._held += encode(message)
        return self.flush()

    def flush(self) -> bool:
        """Hand over queued messages and wait until it is done; return False if the other end is closed."""
        data, self._held = self._held, bytearray()
        # A fork of a rank has closed its copy (`close_in_forks` in runtime/rank/child.py).
        if self._sock.fileno() < 0:
            self.closed_by_peer = True
            return False
        try:
            self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.closed_by_peer = True
            return False
        return True

    def receive(self, *, wait: bool = True, ahead: bool = True) -> Sequence[AnyMessage]:
        """Read what is available (or wait for something), and return the messages that it completes.

        Args:
            wait: whether to wait for something.
            ahead: whether to read more than the next message; otherwise the rest stays in the socket.

        Raises:
            BlockingIOError: nothing is available, and ``wait`` is false.
            ProtocolError: a message is cut, too long or invalid.
        """
        try:
            # MSG_DONTWAIT concerns this call only. O_NONBLOCK would make `sendall` fail as well as soon as
            # the buffer is full.
            chunk = self._sock.recv(_CHUNK if ahead else self._missing(), 0 if wait else socket.MSG_DONTWAIT)
        # The other end closed its socket with unread messages in it.
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self.closed_by_peer = True
            if self._buffer:
                raise ProtocolError(f"message cut after {len(self._buffer)} bytes")
            return ()
        self._buffer += chunk
        return self._complete_messages()

    def _missing(self) -> int:
        """Return the number of bytes up to the end of the next header, or of its message."""
        if len(self._buffer) < _HEADER.size:
            return _HEADER.size - len(self._buffer)
        length: int = _HEADER.unpack_from(self._buffer)[0]
        return min(_CHUNK, _HEADER.size + length - len(self._buffer))

    def _complete_messages(self) -> list[AnyMessage]:
        messages = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            # A broken rank may write anything; without this check its first bytes could ask for 4 GiB.
            if length > MAX_MESSAGE:
                raise ProtocolError(f"announced {length} bytes, more than any message has: not a message")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return messages

    def close(self) -> None:
        """Close this end."""
        self._sock.close()
        self.closed_by_peer = True


def _decode(body: bytes) -> AnyMessage:
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"not a message ({error}): {body[:80]!r}") from error
