"""The controller's handles of its worlds: start them on their slots, receive their messages, end them."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from disttest.clock import monotonic
from disttest.errors import ProtocolError
from disttest.host.descendants import children_of, kill_descendants
from disttest.host.event_loop import EventLoop, wait_any
from disttest.host.fork_memory import before_forks, freeze, is_frozen
from disttest.host.oom import own_cgroups
from disttest.host.process import Child, Exit, adopt_orphans, end_all, fork_child
from disttest.limits import (
    MAIN_MARGIN_S,
    RANKS_LEAVE_S,
    TICK_S,
    WORLD_POOL_CANCEL_S,
    WORLD_SILENCE_S,
    WORLD_START_S,
    WORLD_TERM_S,
)
from disttest.model import Batch, Slot, TestCase
from disttest.plugin_manager import plugin_manager
from disttest.runtime.messages.protocol import (
    Cancel,
    Channel,
    TestBegan,
    TestJudged,
    WorldClosed,
    WorldOrder,
)
from disttest.runtime.rank import state_snapshot
from disttest.runtime.rank.child import send_output_to
from disttest.runtime.world.world_supervisor import RankStarter, WorldSupervisor, make_world

if TYPE_CHECKING:
    import pytest

    from disttest.options.run import RunOptions

WorldMaker = Callable[[WorldOrder, Channel, RankStarter, Callable[[], float]], WorldSupervisor]
"""Creates the world in its own process: by default a whole world, on clusters the share of one node."""

WorldStarter = Callable[[WorldOrder, Channel, Path, Sequence[int]], Child]
"""Starts a world from its order, its end of the channel, its output file, and descriptors that it must close."""


class WorldByFork:
    """Starts a world as a fork of this process."""

    def __init__(
        self, start_rank: RankStarter, clock: Callable[[], float], make_world: WorldMaker = make_world
    ) -> None:
        self._start_rank = start_rank
        self._clock = clock
        self._make_world = make_world

    def __call__(self, order: WorldOrder, channel: Channel, error_log: Path, close: Sequence[int]) -> Child:
        """Fork this process; the child closes descriptors that belong to others, and supervises the world."""

        def main() -> None:
            for fd in close:
                os.close(fd)
            send_output_to(error_log)
            self._make_world(order, channel, self._start_rank, self._clock).run()

        before_forks(order.forks)
        return fork_child(main, new_session=True)


@dataclass(kw_only=True)
class LiveWorld:
    """A running world: its tests without a result, and the connections to it."""

    batch: Batch
    slots: tuple[Slot, ...]
    order: WorldOrder
    channel: Channel
    child: Child
    error_log: Path
    tests: dict[str, TestCase] = field(init=False)
    """Node id -> test, in order. A mapping, because there may be thousands, each looked up twice."""
    owed: dict[str, TestCase] = field(init=False)
    """Tests that it has not judged yet."""
    attempts: dict[str, int] = field(init=False)
    """Node id -> number of the attempt."""
    begun: TestCase | None = None
    began_s: float = 0.0
    """Start of the running test on the monotonic clock."""
    pids: tuple[int, ...] = ()
    """Process ids of its ranks, from its latest verdict."""
    closed: WorldClosed | None = None
    overdue_s: float = 0.0
    """Time on the monotonic clock after which its silence counts as its end."""
    failure: str = ""
    """The reason why its messages are no longer trusted; empty while they are."""

    def __post_init__(self) -> None:
        self.tests = {test.nodeid: test for test in self.order.tests}
        self.owed = dict(self.tests)
        self.attempts = dict(zip(self.tests, self.order.attempts, strict=True))

    @property
    def world_id(self) -> str:
        """Its name in the journal."""
        return self.order.world_id


class Listener:
    """Receives events of the world pool; the controller implements it."""

    def on_began(self, world: LiveWorld, test: TestCase) -> None:
        """A test started."""

    def on_judged(self, world: LiveWorld, test: TestCase, judged: TestJudged) -> None:
        """A test has a result; possibly a second, worse one."""

    def on_word(self, world: LiveWorld, message: object) -> None:
        """A world that spans nodes sent a message for the other nodes."""

    def on_ended(self, world: LiveWorld, ended: Exit) -> None:
        """A world and all its processes have ended."""


# Tests share ranks by default: a new world costs 50 ms, a warm one 3 to 5 ms. A failure replaces the world, so that
# it cannot cause another one.
# docs/decisions/0011-warm-by-default.md
class WorldPool:
    """All running worlds."""

    def __init__(
        self,
        listener: Listener,
        *,
        helpers: Callable[[], Iterable[int]] = tuple,
        services: Iterable[int] = (),
    ) -> None:
        """Start without a world.

        Args:
            listener: learns of messages and ends of worlds.
            helpers: returns the processes of the controller that live on with their descendants.
            services: processes of plugins and of a conftest, which live on with their descendants.
        """
        self._listener = listener
        self._services = tuple(services)
        self.loop = EventLoop()
        self._spared: set[int] = set()
        self._helpers = helpers
        self.running: dict[str, LiveWorld] = {}
        self.is_ending = False
        """Whether worlds that end now do so on request."""

    @contextlib.contextmanager
    def adopting_orphans(self) -> Iterator[None]:
        """Adopt the processes that worlds leave behind, and let none of them outlive this context."""
        # The fork server lives on. Its descendants may be leftovers of a world.
        self._spared = children_of()
        adopt_orphans()
        # Look them up once, for all worlds.
        own_cgroups()
        state_snapshot.look_before_forks()
        # In a fork of a process that imported torch earlier, torch is frozen already.
        if not is_frozen():
            freeze()
        try:
            yield
        finally:
            # Worlds first, which report their ends. Then whatever they left is killed, while this process
            # still adopts it.
            self.end_all("the run was interrupted")
            kill_descendants(spare=self._spared, spare_trees=self._services)
            adopt_orphans(enabled=False)
            self.loop.close()

    def start(
        self,
        batch: Batch,
        slots: tuple[Slot, ...],
        order: WorldOrder,
        start_world: WorldStarter,
    ) -> LiveWorld:
        """Start a world for the remaining tests of a batch."""
        ours, theirs = Channel.pair()
        # A copy of another world's channel in this world would outlive that world, and hide its end from this
        # process.
        others = [world.channel.fileno() for world in self.running.values()]
        error_log = Path(order.scratch_dir) / "world.log"
        child = start_world(order, theirs, error_log, [ours.fileno(), *others])
        theirs.close()
        world = LiveWorld(
            batch=batch,
            slots=slots,
            order=order,
            channel=ours,
            child=child,
            error_log=error_log,
            overdue_s=monotonic() + order.settings.unless_debugged(WORLD_START_S) + WORLD_SILENCE_S,
        )
        self.running[world.world_id] = world
        self.loop.watch(ours, lambda: self._hear(world))
        # A pidfd becomes readable when its process ends, whatever happened to the channel.
        self.loop.watch(child, lambda: self._record_exit(world))
        return world

    def wait(
        self, timeout_s: float = math.inf, *, until_s: float = math.inf, also: Iterable[int] = ()
    ) -> None:
        """Wait for events of worlds, or until an ``also`` descriptor is readable, and handle those of worlds."""
        # The loop is a source itself, so that one wait covers the worlds and the descriptors of other owners.
        wait_any(self.loop, *also, timeout_s=timeout_s, until_s=until_s)
        self.loop.wait(0)
        self._end_silent()

    def _end_silent(self) -> None:
        """End worlds that are silent for too long: a stopped world process would otherwise hang the run."""
        now_s = monotonic()
        for world in self.running.values():
            if now_s > world.overdue_s and not world.failure:
                world.failure = (
                    f"the world process {world.world_id} has sent nothing for {WORLD_SILENCE_S:g} s more than "
                    "its test may take: it was stopped, or is stuck"
                )
                # Without a grace period: a stopped process does not run its handler of SIGTERM. SIGKILL ends
                # it all the same.
                end_all([world.child])

    def end_all(self, reason: str) -> None:
        """Cancel every world, wait briefly for the last messages, then kill."""
        self.is_ending = True
        for world in self.running.values():
            world.channel.send(Cancel(reason=reason))
        until_s = monotonic() + WORLD_POOL_CANCEL_S
        while self.running and monotonic() < until_s:
            self.wait(until_s=until_s)
        end_all([world.child for world in self.running.values()])
        while self.running:
            self.wait(TICK_S)

    def _hear(self, world: LiveWorld, *, wait: bool = True) -> None:
        try:
            messages = world.channel.receive(wait=wait)
        except ProtocolError as error:
            world.failure = f"the world process sent a malformed message: {error}"
            messages = ()
        for message in messages:
            self._on_message(world, message)
        if world.channel.closed_by_peer or world.failure:
            self.loop.ignore(world.channel)
        if world.failure:
            # SIGTERM first, so that the world can end its ranks.
            end_all([world.child], term_grace_s=WORLD_TERM_S)

    def _on_message(self, world: LiveWorld, message: object) -> None:
        match message:
            case TestBegan(nodeid=nodeid, again=again):
                world.begun, world.began_s = world.tests[nodeid], monotonic()
                # The world's own limits end a test long before this one, unless the world itself is stuck.
                limit_s = max(world.begun.timeout_s + MAIN_MARGIN_S, RANKS_LEAVE_S)
                limit_s = world.order.settings.unless_debugged(limit_s)
                world.overdue_s = world.began_s + limit_s + WORLD_SILENCE_S
                if not again:
                    self._listener.on_began(world, world.begun)
            case TestJudged(result=result):
                # A second verdict belongs to a test that is no longer owed.
                world.owed.pop(result.nodeid, None)
                self._listener.on_judged(world, world.tests[result.nodeid], message)
            case WorldClosed():
                world.closed = message
            case _:
                self._listener.on_word(world, message)

    def _record_exit(self, world: LiveWorld) -> None:
        with contextlib.suppress(BlockingIOError):
            # The process has ended, so all of its messages are here. Waiting for the end of the channel could
            # take forever: a process that it left may hold a copy.
            while world.channel in self.loop:
                self._hear(world, wait=False)
        self.loop.ignore(world.child)
        self.loop.ignore(world.channel)
        # Before the listener, which may start a new world for the rest of the batch. The kill below must not
        # spare this world.
        del self.running[world.world_id]
        ended = world.child.poll() or Exit(code=0)
        # The world could not clean up, so its ranks are now children of this process.
        if world.closed is None:
            others = [
                *self._services,
                *self._helpers(),
                *(other.child.pid for other in self.running.values()),
            ]
            kill_descendants(spare=self._spared, spare_trees=others)
        world.channel.close()
        world.child.close()
        self._listener.on_ended(world, ended)


def settle(config: pytest.Config, options: RunOptions) -> dict[str, Any]:
    """Ask plugins for the data that they want in every process of every world; return it by their names, as JSON data."""
    found = plugin_manager().named("disttest_settle", object, config=config, options=options)
    settled: dict[str, Any] = msgspec.to_builtins(found)
    return settled
