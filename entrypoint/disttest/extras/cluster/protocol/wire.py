"""What agents and the client say to each other, and the lines that carry it.

An agent writes to its standard output, which schedulers collect in lines, cut when they are long (Slurm: at 1,024
bytes) and mix with those of other nodes and of whoever else prints. So each line is short and says whose it is, which
one it is, and whether the message goes on; a gap is an error with a name. What has no prefix is not ours.

The client writes one JSON document a line, and every agent gets every line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from disttest.errors import ProtocolError
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.model import UNREADABLE, Frozen, RankRecord
from disttest.runtime.messages.protocol import Message

PREFIX = b"%disttest"
PIECE = 880
"""Bytes of a message in one line."""
_LINE = re.compile(rb"%disttest (\d+) (\d+) ([+.]) (.*)", re.DOTALL)


class Versions(Frozen):
    """What has to be the same on all nodes."""

    disttest: str
    python: str
    torch: str
    plugins: tuple[str, ...] = ()
    """Names and versions."""


# --- from an agent


class NodeReady(Message):
    """It has taken the job and collected the tests."""

    host: str
    at_s: float
    """Its wall clock now; the difference to the client's is taken off all its times."""
    versions: Versions
    digest: str
    """Of the collected tests and their sources."""
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    """Node id -> the values of its parameters, where the node has ranks of worlds that span several."""
    gpus: tuple[str, ...] = ()
    """What it was granted, as ``CUDA_VISIBLE_DEVICES`` names it."""


class Refused(Message):
    """It cannot do what the job asks for."""

    host: str
    message: str


class Listening(Message):
    """Node 0: the rendezvous of a world is open."""

    world: int
    address: str
    port: int


class PartitionUp(Message):
    """Its ranks of a world are up, as far as they ever will be."""

    world: int


class RankFailed(Message):
    """The first failure of a test on this node: the other nodes must not wait for it."""

    test: int


class EvidenceTaken(Message):
    """The deadline of a test has passed, its ranks have told what they were doing, and none has been ended yet."""

    test: int


class PartitionDone(Message):
    """What its ranks did in a test. A second one, worse, may follow for a rank that died late."""

    test: int
    ranks: tuple[RankRecord, ...]
    started_at_s: float
    duration_s: float
    healthy: bool
    """Whether the world can run another test."""
    cancelled: str = ""
    """Why its ranks were ended in the middle of the test, if nothing of theirs was the reason."""
    attempt: int = 1


class PartitionEnded(Message):
    """Its processes of a world are gone."""

    world: int
    notes: tuple[str, ...] = ()
    failure: str = ""
    """Its supervisor died: ranks without a record will not get one."""


class LogText(Message):
    """The log of a rank, capped."""

    path: str
    """Relative to the results directory."""
    text: str


class RankOutput(Message):
    """Whole lines that a rank has printed while its test runs, in its order; sent where the job asks for them."""

    rank: int
    lines: tuple[str, ...]


class JournalLine(Message):
    """An event of a lease's own journal."""

    event: msgspec.Raw


class NodeNote(Message):
    """Something that a reader should know."""

    message: str


class Alive(Message):
    """Nothing else to say."""


CLIENT_GONE = "the client is gone"
"""A node's reason where its input ended."""
SCHEDULER_ENDED = "the scheduler ended the job"
"""Begins a node's reason where the scheduler told it to end; the scheduler may say why."""


class NodeDone(Message):
    """Its last word: nothing of the job runs on this node any more."""

    reason: str = ""


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
    """The first line."""

    job: JobSpec


class SetVariables(Message):
    """Before the job: variables of the environment, where the scheduler would show them to others."""

    variables: dict[str, str]


class OpenWorld(Message):
    """Node 0: open a rendezvous."""

    world: int


class JoinWorld(Message):
    """Start your ranks of this world, for these tests (indices into the job's)."""

    world: int
    tests: tuple[int, ...]
    address: str
    port: int
    attempts: tuple[int, ...] = ()
    """The number of each test's attempt; empty: the first of each."""


class RunShare(Message):
    """Every node is ready: run this test."""

    test: int


class EndShare(Message):
    """A rank of another node has failed: end this test after the usual grace."""

    test: int


class EvidenceComplete(Message):
    """All nodes have their evidence: the ranks may be ended."""

    test: int


class CloseWorld(Message):
    """Let the ranks leave."""

    world: int


class CancelJob(Message):
    """Stop: with evidence, and quickly."""

    reason: str


class FinishJob(Message):
    """All is done."""


class StillHere(Message):
    """The client lives."""


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
    """A message to all nodes, as one line."""
    return msgspec.json.encode(order) + b"\n"


def decode_order(line: bytes) -> ToNode:
    """A line from the client.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        return _to_node.decode(line)
    except UNREADABLE as error:
        raise ProtocolError(f"the client wrote what is no order ({error}): {line[:80]!r}") from error


class LineWriter:
    """Cuts the messages of one agent into lines."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._number = 0

    def lines(self, body: bytes) -> bytes:
        """A message (its JSON) as lines."""
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
        out = bytearray()
        for index, piece in enumerate(pieces):
            more = b"+" if index + 1 < len(pieces) else b"."
            out += b"%s %d %d %s %s\n" % (PREFIX, self._node, self._number, more, piece)
            self._number += 1
        return bytes(out)


class LineReader:
    """Puts the lines of all agents of a job together again."""

    def __init__(self) -> None:
        self._open: dict[int, bytearray] = {}
        self._next: dict[int, int] = {}

    def feed(self, line: bytes) -> Iterator[tuple[int, FromNode]]:
        """Yield ``(node, message)`` if the line completes one; a line that is not an agent's yields nothing.

        Raises:
            ProtocolError: a line is missing, or what was put together is no message.
        """
        match = _LINE.match(line.rstrip(b"\r\n"))
        if match is None:
            return
        node, number = int(match[1]), int(match[2])
        if number != self._next.get(node, 0):
            raise ProtocolError(
                f"node {node}: line {number} came where line {self._next.get(node, 0)} was due: output was lost"
            )
        self._next[node] = number + 1
        body = self._open.setdefault(node, bytearray())
        body += match[4]
        if match[3] == b".":
            del self._open[node]
            yield node, _decode(node, bytes(body))


def is_ours(line: bytes) -> bool:
    """Whether a line is an agent's, and not its scheduler's or somebody else's."""
    return line.startswith(PREFIX)


def _decode(node: int, body: bytes) -> FromNode:
    try:
        return _from_node.decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"node {node}: not a message ({error}): {body[:80]!r}") from error
