"""Messages between agents and the client, and the lines that carry them.

An agent writes to its standard output. Schedulers collect that in lines, cut long ones (Slurm: at 1,024 bytes), and mix
them with lines of other nodes and programs. Each line is therefore short and states its node, its number, and whether
the message continues; a gap is an error that names the node. Lines without the prefix are from other programs.

The client writes one JSON document a line, and all agents get all lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from disttest.errors import ProtocolError
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.model import UNREADABLE, Frozen, RankRecord
from disttest.results.events import AnyEvent
from disttest.runtime.messages.protocol import Message

PREFIX = b"%disttest"
# With its prefix a line stays below the 1,024 bytes that Slurm carries whole, also for large numbers.
PIECE = 880
"""Bytes of a message in one line."""
# %disttest 1 42 + {"kind":"PartitionDone","test":3,…  (node, line, whether it continues, piece)
_LINE = re.compile(rb"%disttest (\d+) (\d+) ([+.]) (.*)", re.DOTALL)


class Versions(Frozen):
    """Versions that have to be equal on all nodes."""

    disttest: str
    python: str
    torch: str
    plugins: tuple[str, ...] = ()
    """Names and versions of plugins."""


# --- from an agent


class NodeReady(Message):
    """The node has taken the job and collected the tests."""

    host: str
    at_s: float
    """Present wall clock of the node; its offset from the client's clock is subtracted from all times."""
    versions: Versions
    digest: str
    """Digest of the collected tests and their sources."""
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    """Node id -> values of its parameters, for nodes with ranks of spanning worlds."""
    gpus: tuple[str, ...] = ()
    """Granted GPUs, as ``CUDA_VISIBLE_DEVICES`` names them."""


class Refused(Message):
    """The node cannot do the job."""

    host: str
    message: str


class Listening(Message):
    """Node 0 has opened the rendezvous of a world."""

    world: int
    address: str
    port: int


class PartitionUp(Message):
    """All ranks of the node that will start are up."""

    world: int


class RankFailed(Message):
    """First failure of a test on this node: the other nodes must not wait for it."""

    test: int


class EvidenceTaken(Message):
    """The deadline of a test has passed; its ranks have given evidence, and none has been ended yet."""

    test: int


class PartitionDone(Message):
    """Records of a test. A second, worse one may follow for a rank that died late."""

    test: int
    ranks: tuple[RankRecord, ...]
    started_at_s: float
    duration_s: float
    healthy: bool
    """Whether the world can run another test."""
    cancelled: str = ""
    """Reason why its ranks were ended during the test, unless they were the reason themselves."""
    by_scheduler: bool = False
    """Whether the scheduler had asked the node to end by then."""
    plugin_error: str = ""
    """Exception of a plugin during the test: the message, and the traceback on further lines."""
    attempt: int = 1


class PartitionEnded(Message):
    """The node's processes of a world are gone."""

    world: int
    notes: tuple[str, ...] = ()
    failure: str = ""
    """Set if its supervisor died: missing records will never come."""
    plugin_error: str = ""
    """Exception of a plugin that watches the machine: the message, and the traceback on further lines."""


class LogText(Message):
    """Log of a rank, up to a limit."""

    path: str
    """Path relative to the results directory."""
    text: str


class RankOutput(Message):
    """Whole lines of output of a running rank, in order; sent if the job asks for them."""

    rank: int
    lines: tuple[str, ...]


class JournalLine(Message):
    """An event of a lease's journal."""

    event: AnyEvent


class NodeNote(Message):
    """A note for the reader."""

    message: str


class Alive(Message):
    """The node is alive."""


CLIENT_GONE = "the client is gone"
"""Reason of a node whose input ended."""


class NodeDone(Message):
    """Last message: nothing of the job runs on this node any more."""

    reason: str = ""
    by_scheduler: bool = False
    """Whether the scheduler asked the node to end: it may know why."""


FromNode = (
    NodeReady
    | Refused
    | Listening
    | PartitionUp
    | RankFailed
    | EvidenceTaken
    | PartitionDone
    | PartitionEnded
    | LogText
    | RankOutput
    | JournalLine
    | NodeNote
    | Alive
    | NodeDone
)


# --- from the client


class TakeJob(Message):
    """The job; the first line."""

    job: JobSpec


class SetVariables(Message):
    """Environment variables that the scheduler would show to other users; sent before the job."""

    variables: dict[str, str]


class OpenWorld(Message):
    """Order for node 0: open a rendezvous."""

    world: int


class JoinWorld(Message):
    """Start the ranks of this world, for these tests (indices into the job's tests)."""

    world: int
    tests: tuple[int, ...]
    address: str
    port: int
    attempts: tuple[int, ...] = ()
    """Number of each test's attempt; empty for the first of each."""


class RunShare(Message):
    """Run this test; all nodes are ready."""

    test: int


class EndShare(Message):
    """A rank of another node has failed: end this test after the grace period."""

    test: int


class EvidenceComplete(Message):
    """All nodes have their evidence: the ranks may be ended."""

    test: int


class CloseWorld(Message):
    """Let the ranks leave."""

    world: int


class CancelJob(Message):
    """Stop quickly, with evidence."""

    reason: str
    by_scheduler: bool = False
    """Whether the scheduler asked the node to end."""


class FinishJob(Message):
    """The job is done."""


class StillHere(Message):
    """The client is alive."""


ToNode = (
    TakeJob
    | SetVariables
    | OpenWorld
    | JoinWorld
    | RunShare
    | EndShare
    | EvidenceComplete
    | CloseWorld
    | CancelJob
    | FinishJob
    | StillHere
)

_from_node: msgspec.json.Decoder[FromNode] = msgspec.json.Decoder(FromNode)
_to_node: msgspec.json.Decoder[ToNode] = msgspec.json.Decoder(ToNode)


def encode_order(order: Message) -> bytes:
    """Encode a message to all nodes as one line."""
    return msgspec.json.encode(order) + b"\n"


def decode_order(line: bytes) -> ToNode:
    """Decode a line of the client.

    Raises:
        ProtocolError: the line is not an order.
    """
    try:
        return _to_node.decode(line)
    except UNREADABLE as error:
        raise ProtocolError(f"the client sent an invalid order ({error}): {line[:80]!r}") from error


class LineWriter:
    """Splits the messages of one agent into lines."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._number = 0

    def lines(self, body: bytes) -> bytes:
        """Split a message (as JSON) into lines."""
        # Bytes: a cut through a character is closed again before the message is decoded.
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
        out = bytearray()
        for index, piece in enumerate(pieces):
            more = b"+" if index + 1 < len(pieces) else b"."
            out += b"%s %d %d %s %s\n" % (PREFIX, self._node, self._number, more, piece)
            self._number += 1
        return bytes(out)


class LineReader:
    """Joins the lines of all agents of a job."""

    def __init__(self) -> None:
        self._open: dict[int, bytearray] = {}
        self._next: dict[int, int] = {}

    def feed(self, line: bytes) -> Iterator[tuple[int, FromNode]]:
        """Yield ``(node, message)`` if the line completes a message; ignore lines of other programs.

        Raises:
            ProtocolError: a line is missing, or the joined text is not a message.
        """
        match = _LINE.match(line.rstrip(b"\r\n"))
        if match is None:
            return
        node, number = int(match[1]), int(match[2])
        if number != self._next.get(node, 0):
            raise ProtocolError(
                f"node {node}: line {number} came in place of line {self._next.get(node, 0)}; output was lost"
            )
        # Numbers count lines, not messages, so that a lost piece is noticed with the next line of its node.
        self._next[node] = number + 1
        body = self._open.setdefault(node, bytearray())
        body += match[4]
        if match[3] == b".":
            del self._open[node]
            yield node, _decode(node, bytes(body))


def is_ours(line: bytes) -> bool:
    """Whether an agent wrote the line, and not its scheduler or another program."""
    return line.startswith(PREFIX)


def _decode(node: int, body: bytes) -> FromNode:
    try:
        return _from_node.decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"node {node}: not a message ({error}): {body[:80]!r}") from error
