"""A node's part of worlds that span nodes: the controller in the pytest process of the node.

It follows the client's orders and decides nothing: it opens the rendezvous (node 0), starts its ranks of a world, runs
a test when all nodes are ready, and passes on the records of its ranks. The ranks have the same supervisor as on one
machine.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from disttest.clock import monotonic
from disttest.errors import InfrastructureError
from disttest.extras.cluster.limits import PORT_PAUSE_S
from disttest.extras.cluster.node.assignment import NodeAssignment
from disttest.extras.cluster.node.live_lines import LiveLines
from disttest.extras.cluster.node.partition_world import InterpreterStarter, PartitionWorld
from disttest.extras.cluster.protocol.fingerprint import digest_tests, versions_here
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.wire import (
    CancelJob,
    CloseWorld,
    EndShare,
    EvidenceComplete,
    EvidenceTaken,
    FinishJob,
    JoinWorld,
    Listening,
    LogText,
    NodeNote,
    NodeReady,
    OpenWorld,
    PartitionDone,
    PartitionEnded,
    PartitionUp,
    RankFailed,
    Refused,
    RunShare,
    ToNode,
    decode_order,
)
from disttest.host.fork_hazard import fork_hazard
from disttest.host.lines import Lines
from disttest.host.process import Exit
from disttest.limits import IDLE_S, TICK_S
from disttest.model import Batch, Frozen, Outcome, RankEnd, RankRecord, TestCase
from disttest.results.journal import run_clock
from disttest.runtime.controller.collect import modules_of
from disttest.runtime.controller.orders import order_of, own_arguments
from disttest.runtime.controller.session import RunSession
from disttest.runtime.controller.world_pool import Listener, LiveWorld, WorldByFork, WorldPool, settle
from disttest.runtime.messages.collected import describe_collected
from disttest.runtime.messages.protocol import (
    Dismiss,
    EvidenceAgreed,
    EvidenceReady,
    Message,
    NodePartition,
    PeerFailed,
    RankFailedFirst,
    RunNext,
    TestJudged,
    WorldOrder,
    WorldUp,
    clean_text,
)
from disttest.runtime.rank.rank import ForkStarter
from disttest.runtime.world.store import open_rendezvous
from disttest.runtime.world.world_supervisor import RankStarter
from disttest.safe_open import Tree

LIMIT = 512 * 1024
"""Bytes of a log to send for a rank that failed or was ended: head and tail."""
GREEN_LIMIT = 32 * 1024
"""The same for a rank that passed or skipped."""


def log_texts(results: Path, ranks: Iterable[RankRecord]) -> Iterator[LogText]:
    """Yield the logs of these ranks, including empty ones, since reports name them; skip missing logs."""
    try:
        # Without links: a test may put one in the place of its log, and any file of the node would be sent.
        tree = Tree(results)
    except OSError:
        return
    for record in ranks:
        with contextlib.suppress(OSError):
            fd = tree.open(record.log)
            green = record.end is RankEnd.REPORTED and record.outcome in (Outcome.PASSED, Outcome.SKIPPED)
            yield LogText(path=record.log, text=read_capped(fd, GREEN_LIMIT if green else LIMIT))


def read_capped(fd: int, limit: int) -> str:
    """Read and close a file as text; of one that is too long only head and tail, with a mark between."""
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(fd).st_size
        if size <= limit:
            return clean_text(file.read().decode("utf-8", "replace"))
        head = file.read(limit // 2)
        file.seek(-(limit // 2), 2)
        tail = file.read()
    cut = size - 2 * (limit // 2)
    mark = f"\n\n[disttest: {cut} bytes stayed on the node]\n\n"
    return clean_text(head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace"))


PORT_ATTEMPTS = 5
_CHUNK = 1 << 16


class PartitionOrder(Frozen):
    """The work of the pytest process of an agent."""

    job: JobSpec
    assignment: NodeAssignment
    fd: int
    """Socket to the agent."""


def serve_partition(session: pytest.Session, run: RunSession, order: PartitionOrder) -> None:
    """Serve the job until it is over."""
    line = _AgentLine(socket.socket(fileno=order.fd))
    if run.errors:
        nodeid, message = run.errors[0]
        line.send(
            Refused(host=order.assignment.host, message=f"{nodeid} cannot be collected here:\n{message}")
        )
        return
    PartitionController(session, run, order, line).run()


class _AgentLine:
    """Connection to the agent: JSON documents, one a line, both ways."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lines = Lines()
        self.closed = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message) -> None:
        try:
            self._sock.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            self.closed = True

    def receive(self) -> list[ToNode]:
        chunk = self._sock.recv(_CHUNK)
        self.closed = self.closed or not chunk
        return [decode_order(line) for line in self._lines.feed(chunk)]


class PartitionController(Listener):
    """The controller of one node."""

    def __init__(
        self, session: pytest.Session, run: RunSession, order: PartitionOrder, line: _AgentLine
    ) -> None:
        assert run.workplace is not None
        self._session = session
        self._options = run.options
        self._host = run.host
        self._cpus = len(os.sched_getaffinity(0))
        self._workplace = run.workplace
        self._job = _with_real_names(order.job, [test for _, test in run.pairs])
        self._assignment = order.assignment
        self._line = line
        self._clock = run_clock()
        self._items = {test.nodeid: item for item, test in run.pairs}
        self._tests: dict[str, TestCase] = {test.nodeid: test for _, test in run.pairs}
        self._number = {test.nodeid: number for number, test in enumerate(self._job.tests)}
        self._pool = WorldPool(self)
        self._world: LiveWorld | None = None
        self._world_number = 0
        self._listener: socket.socket | None = None
        self._settled = settle(session.config, self._options)
        self._over = False
        self._by_scheduler = False
        self._live = LiveLines(run.workplace.results, monotonic, asked=order.job.live_output)
        self._hazard = fork_hazard(on_gpus=run.host.device != "cpu")

    def run(self) -> None:
        """Report what was collected, then follow orders until the job is over."""
        self._line.send(
            NodeReady(
                host=self._assignment.host,
                at_s=self._clock(),
                versions=versions_here(),
                # A node with another checkout would run other code under the same name. The client compares
                # the digests of all nodes.
                digest=digest_tests(self._tests.values(), Path(self._session.config.rootpath)),
                parameters=describe_collected(self._items.values()),
                gpus=self._assignment.gpus,
            )
        )
        if self._hazard:
            self._line.send(
                NodeNote(
                    message=f"forking is unsafe on node {self._assignment.host}: {self._hazard}. Ranks are fresh interpreters"
                )
            )
        with self._pool.adopting_orphans():
            self._pool.loop.watch(self._line, self._on_line)
            while not self._over:
                self._pool.wait(TICK_S if self._live.is_following else IDLE_S)
                self._send_all(self._live.poll())

    # --- orders

    def _on_line(self) -> None:
        for order in self._line.receive():
            self._handle_order(order)
        if self._line.closed:
            self._pool.end_all("the agent is gone")
            self._over = True

    def _handle_order(self, order: ToNode) -> None:
        match order:
            case OpenWorld(world=world):
                self._open(world)
            case JoinWorld():
                self._join(order)
            case RunShare():
                self._send_to_world(RunNext())
            case EndShare(test=test):
                self._send_to_world(PeerFailed(), test)
            case EvidenceComplete(test=test):
                self._send_to_world(EvidenceAgreed(), test)
            case CloseWorld():
                self._send_to_world(Dismiss())
            case CancelJob(reason=reason, by_scheduler=by_scheduler):
                # Before the end of the ranks, whose records carry it.
                self._by_scheduler = by_scheduler
                self._pool.end_all(reason)
                self._over = True
            case FinishJob():
                self._over = True

    def _send_to_world(self, message: Message, test: int | None = None) -> None:
        """Pass an order on. An order for a test that is over comes too late and is dropped."""
        world = self._world
        if world is None:
            return
        begun = self._number[world.begun.nodeid] if world.begun else None
        if test is None or test == begun:
            world.channel.send(message)

    def _open(self, world: int) -> None:
        """Choose the port of the rendezvous by listening on it, so that no other process can take it."""
        # One rendezvous for each world; the other nodes get its address with `JoinWorld`.
        if self._assignment.node != 0:
            return
        try:
            self._listener = listen(self._assignment.address, self._job.ports)
        except (OSError, InfrastructureError) as error:
            self._line.send(Refused(host=self._assignment.host, message=f"no rendezvous: {error}"))
            return
        self._line.send(
            Listening(world=world, address=self._assignment.address, port=self._listener.getsockname()[1])
        )

    def _join(self, order: JoinWorld) -> None:
        tests = tuple(self._job.tests[number] for number in order.tests)
        shape = tests[0].world
        assert shape is not None
        self._world_number = order.world
        ranks = shape.ranks_per_node
        scratch = self._workplace.scratch / f"w{order.world}"
        scratch.mkdir(parents=True, exist_ok=True)
        partition = NodePartition(
            node=self._assignment.node,
            nodes=self._assignment.nodes,
            first_rank=self._assignment.node * ranks,
            ranks=ranks,
            address=order.address,
            port=order.port,
            interface=self._assignment.interface,
            shared_dir=_shared(self._job, order.world),
        )
        world_order = WorldOrder(
            world_id=f"{self._job.job_id}.w{order.world}",
            tests=tests,
            attempts=order.attempts or (1,) * len(tests),
            devices=self._assignment.gpus[:ranks] if shape.device != "cpu" else (),
            home=self._workplace.home,
            scratch_dir=str(scratch),
            settings=self._options.for_worlds(),
            threads=max(1, self._cpus // ranks),
            settled=self._settled,
            partition=partition,
        )
        batch = Batch(
            batch_id=world_order.world_id,
            nodeids=tuple(test.nodeid for test in tests),
            shape=shape,
            isolation=tests[0].isolation,
        )
        # The world inherits the listening socket by its fork, so the port is never free in between.
        make_world = functools.partial(PartitionWorld, listener=self._listener)
        start_world = WorldByFork(self._starter(tests), self._clock, make_world)
        self._world = self._pool.start(batch, (), world_order, start_world)
        if self._listener is not None:
            # The world has its copy. This one would keep the port in use after the end of the world.
            self._listener.close()
            self._listener = None

    def _starter(self, tests: Sequence[TestCase]) -> RankStarter:
        if not self._hazard:
            return ForkStarter(self._session, self._items)
        items = [self._items[test.nodeid] for test in tests]
        config = self._session.config
        shared = msgspec.structs.replace(order_of(config).shared, host=self._host)
        return InterpreterStarter(own_arguments(config), modules_of(items), shared)

    # --- what the world says

    def on_began(self, world: LiveWorld, test: TestCase) -> None:
        """Follow the logs of a test that begins."""
        self._live.begin(test.nodeid, test.log_folder(world.attempts[test.nodeid]))

    def on_word(self, world: LiveWorld, message: object) -> None:
        """Pass a message of the world on."""
        match message:
            case WorldUp():
                self._line.send(PartitionUp(world=self._world_number))
            case RankFailedFirst():
                self._line.send(RankFailed(test=self._running(world)))
            case EvidenceReady():
                self._line.send(EvidenceTaken(test=self._running(world)))

    def on_judged(self, world: LiveWorld, test: TestCase, judged: TestJudged) -> None:
        """Send the records of this node's ranks, then their logs."""
        del world
        result = judged.result
        self._send_all(self._live.end(test.nodeid))
        self._line.send(
            PartitionDone(
                test=self._number[test.nodeid],
                ranks=result.ranks,
                started_at_s=result.started_at_s,
                duration_s=result.duration_s,
                healthy=judged.healthy,
                cancelled=judged.result.message,
                by_scheduler=self._by_scheduler,
                plugin_error=judged.plugin_error,
                attempt=result.attempt,
            )
        )
        # Last: a verdict needs the records, and logs may be large.
        self._send_all(log_texts(self._workplace.results, result.ranks))

    def on_ended(self, world: LiveWorld, ended: Exit) -> None:
        """Report that a world and all its processes are gone."""
        closed, failure = world.closed, world.failure
        if closed is None and not failure:
            text = world.error_log.read_text(errors="replace").strip() if world.error_log.exists() else ""
            failure = f"the world process on node {self._assignment.host} ended with {ended}"
            failure += f": {text.splitlines()[-1]}" if text else ""
        if world.begun is not None:
            self._send_all(self._live.end(world.begun.nodeid))
        notes = closed.notes if closed else ()
        left = closed.leftovers if closed else ()
        notes += tuple(f"{nodeid}: {text}" if nodeid else text for nodeid, text in left)
        if closed and closed.survivors:
            notes = (*notes, f"processes that could not be killed: {', '.join(map(str, closed.survivors))}")
        self._world = None
        self._line.send(
            PartitionEnded(
                world=self._world_number,
                notes=notes,
                failure=failure,
                plugin_error=closed.plugin_error if closed else "",
            )
        )

    def _send_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._line.send(message)

    def _running(self, world: LiveWorld) -> int:
        # A rank may fail before its first test.
        begun = world.begun.nodeid if world.begun else world.order.tests[0].nodeid
        return self._number[begun]


def _with_real_names(job: JobSpec, collected: Sequence[TestCase]) -> JobSpec:
    """Replace tests whose names have hidden secrets by those collected here: ranks look for the real names."""
    here = {clean_text(test.nodeid): test for test in collected}
    tests = (here.get(test.nodeid, test) for test in job.tests)
    return msgspec.structs.replace(job, tests=tuple(tests))


def listen(address: str, ports: tuple[int, int]) -> socket.socket:
    """Listen on a port that the kernel chooses, or on the first free one of a range; retry if all are taken.

    Raises:
        InfrastructureError: each port of the range is taken.
    """
    for attempt in Retrying(
        stop=stop_after_attempt(PORT_ATTEMPTS),
        wait=wait_fixed(PORT_PAUSE_S),
        retry=retry_if_exception(lambda error: isinstance(error, InfrastructureError)),
        reraise=True,
    ):
        with attempt:
            return _listen_once(address, ports)
    raise AssertionError


def _listen_once(address: str, ports: tuple[int, int]) -> socket.socket:
    # Without a range this tries port 0 once, for which the kernel chooses a free one.
    for port in range(ports[0], ports[1] + 1):
        try:
            return open_rendezvous(address, port)
        except OSError as error:
            # Another port does not help if, for example, the address is not one of this machine.
            if error.errno != errno.EADDRINUSE:
                raise
    raise InfrastructureError(
        f"every port from {ports[0]} to {ports[1]} of {address} is taken; give more with --ports"
    )


def _shared(job: JobSpec, world: int) -> str:
    return os.path.join(job.shared_dir, job.name, f"w{world}") if job.shared_dir else ""  # noqa: PTH118
