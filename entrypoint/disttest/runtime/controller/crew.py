"""The controller's hold on its worlds: start one on its slots, hear it, see it end, make it end."""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disttest.errors import ProtocolError
from disttest.host.oom import own_cgroups
from disttest.host.process import (
    Child,
    Exit,
    adopt_orphans,
    children_of,
    end_all,
    fork_child,
    kill_descendants,
)
from disttest.model import Gang, Slot, TestCase
from disttest.running.attempt import MainAttempt
from disttest.running.protocol import (
    Cancel,
    Channel,
    TestBegan,
    TestJudged,
    WorldClosed,
    WorldOrder,
)
from disttest.running.seats import HasFileno
from disttest.running.world import LEAVE_LIMIT_S, START_LIMIT_S, RankStarter, World

SILENCE_LIMIT_S = 30.0
"""How much longer than its tests may take a world may say nothing: it has been stopped, or is stuck."""
CANCEL_LIMIT_S = 2.5
"""How long worlds may take to end in an orderly way when the run is cancelled."""


WorldMaker = Callable[[WorldOrder, Channel, RankStarter, Callable[[], float]], World]
"""Makes the world in its own process: by default the whole of it, else the share of one node."""


@dataclass(kw_only=True)
class Running:
    """A world that runs: who it is, what it still owes, and the lines to it."""

    gang: Gang
    slots: tuple[Slot, ...]
    order: WorldOrder
    channel: Channel
    child: Child
    error_log: Path
    owed: list[TestCase] = field(default_factory=list)
    begun: TestCase | None = None
    closed: WorldClosed | None = None
    overdue_s: float = 0.0
    """When its silence counts as its end, on the monotonic clock."""
    failure: str = ""
    """Why its word can not be trusted; empty while it can."""

    @property
    def world_id(self) -> str:
        """Its name in the journal."""
        return self.order.world_id


class Listener:
    """What the crew tells; the controller implements it."""

    def on_began(self, world: Running, test: TestCase) -> None:
        """A test starts."""

    def on_judged(self, world: Running, test: TestCase, judged: TestJudged) -> None:
        """A test has its verdict; possibly a second, worse one."""

    def on_word(self, world: Running, message: object) -> None:
        """A world that spans nodes has something to tell the others."""

    def on_ended(self, world: Running, ended: Exit) -> None:
        """A world and all its processes are gone."""


class Crew:
    """All running worlds."""

    def __init__(
        self,
        listener: Listener,
        clock: Callable[[], float],
        helpers: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._spared: set[int] = set()
        self._helpers = helpers
        self.running: dict[str, Running] = {}
        self.is_ending = False
        """Worlds that end now were told to by us."""

    @contextlib.contextmanager
    def on_duty(self) -> Iterator[None]:
        """Adopt what worlds leave behind, and let nothing of them outlive this context."""
        self._spared = children_of()
        adopt_orphans()
        own_cgroups()  # looked up once, for all worlds
        # Pages of long-lived objects stay shared with the ranks. What is garbage by now stays, too: looking for it would
        # take longer than a small suite, and there is little.
        gc.freeze()
        try:
            yield
        finally:
            self.end_all("the run was interrupted")
            kill_descendants(spare=self._spared)
            gc.unfreeze()
            adopt_orphans(enabled=False)
            self._selector.close()

    def start(
        self,
        gang: Gang,
        slots: tuple[Slot, ...],
        order: WorldOrder,
        start_rank: RankStarter,
        *,
        make_world: WorldMaker = World,
    ) -> Running:
        """Fork a world for what is left of a gang."""
        ours, theirs = Channel.pair()
        others = [world.channel.fileno() for world in self.running.values()]
        error_log = Path(order.scratch_dir) / "world.log"

        def main() -> None:
            for fd in (ours.fileno(), *others):
                os.close(fd)
            _speak_into(error_log)
            make_world(order, theirs, start_rank, self._clock).run()

        child = fork_child(main, new_session=True)
        theirs.close()
        world = Running(
            gang=gang,
            slots=slots,
            order=order,
            channel=ours,
            child=child,
            error_log=error_log,
            owed=list(order.tests),
            overdue_s=time.monotonic() + START_LIMIT_S + SILENCE_LIMIT_S,
        )
        self.running[world.world_id] = world
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._hear(world))
        self._selector.register(child, selectors.EVENT_READ, lambda: self._bury(world))
        return world

    def watch_also(self, line: HasFileno, on_readable: Callable[[], None]) -> None:
        """Wait for another descriptor in the same loop."""
        self._selector.register(line, selectors.EVENT_READ, on_readable)

    def wait(self, timeout_s: float, also: Iterable[int] = ()) -> None:
        """Handle what happens, for at most that long, or until one of the ``also`` descriptors is readable."""
        others = tuple(also)
        for descriptor in others:
            self._selector.register(descriptor, selectors.EVENT_READ, _nothing)
        try:
            happened = self._selector.select(max(0.0, timeout_s))
        finally:
            for descriptor in others:
                self._selector.unregister(descriptor)
        for key, _ in happened:
            # A callback may have ended a world whose other descriptor is in the same batch.
            if key.fd in self._selector.get_map():
                key.data()
        self._end_silent()

    def _end_silent(self) -> None:
        """A world watches over its ranks; here somebody watches over it."""
        now_s = time.monotonic()
        for world in self.running.values():
            if now_s > world.overdue_s and not world.failure:
                world.failure = (
                    f"the world process {world.world_id} has said nothing for {SILENCE_LIMIT_S:g} s more than "
                    "its test may take: it was stopped, or is stuck"
                )
                end_all([world.child], term_grace_s=0.0)

    def end_all(self, reason: str) -> None:
        """Cancel every world, wait a little for their last words, then kill."""
        self.is_ending = True
        for world in self.running.values():
            world.channel.send(Cancel(reason=reason))
        deadline = time.monotonic() + CANCEL_LIMIT_S
        while self.running and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())
        end_all([world.child for world in self.running.values()], term_grace_s=0.0)
        while self.running:
            self.wait(0.05)

    def _hear(self, world: Running, *, wait: bool = True) -> None:
        try:
            messages = world.channel.receive(wait=wait)
        except ProtocolError as error:
            world.failure = f"the world spoke nonsense: {error}"
            messages = ()
        for message in messages:
            self._on_message(world, message)
        if (
            world.channel.closed_by_peer or world.failure
        ) and world.channel.fileno() in self._selector.get_map():
            self._selector.unregister(world.channel)
        if world.failure:
            end_all([world.child], term_grace_s=0.5)

    def _on_message(self, world: Running, message: object) -> None:
        match message:
            case TestBegan(nodeid=nodeid):
                world.begun = _find(world.order.tests, nodeid)
                limit_s = max(world.begun.timeout_s + MainAttempt.MARGIN_S, LEAVE_LIMIT_S)
                world.overdue_s = time.monotonic() + limit_s + SILENCE_LIMIT_S
                self._listener.on_began(world, world.begun)
            case TestJudged(result=result):
                test = _find(world.order.tests, result.nodeid)
                world.owed = [owed for owed in world.owed if owed.nodeid != test.nodeid]
                self._listener.on_judged(world, test, message)
            case WorldClosed():
                world.closed = message
            case _:
                self._listener.on_word(world, message)

    def _bury(self, world: Running) -> None:
        with contextlib.suppress(BlockingIOError):
            while world.channel.fileno() in self._selector.get_map():
                self._hear(world, wait=False)
                if world.channel.closed_by_peer:
                    break
        for fileobj in (world.child, world.channel):
            if fileobj.fileno() in self._selector.get_map():
                self._selector.unregister(fileobj)
        del self.running[world.world_id]
        ended = world.child.poll() or Exit(code=0)
        if world.closed is None:  # it could not clean up after itself; its ranks are ours now
            others = [*self._helpers(), *(other.child.pid for other in self.running.values())]
            kill_descendants(spare=self._spared, spare_trees=others)
        world.channel.close()
        world.child.close()
        self._listener.on_ended(world, ended)


def _nothing() -> None:
    """For what ends a wait and is handled elsewhere."""


def _find(tests: Sequence[TestCase], nodeid: str) -> TestCase:
    return next(test for test in tests if test.nodeid == nodeid)


def _speak_into(path: Path) -> None:
    """Send this process's output, tracebacks included, to a file of its own."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
