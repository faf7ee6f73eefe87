"""Process of a rank: run tests on the world's orders, and send pytest's reports to the world.

A rank is a fork of a process that has collected the tests or, where forking is unsafe, a fresh interpreter that
collects them. From :func:`live` on, both behave alike.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
import traceback
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from disttest.clock import monotonic
from disttest.descriptors import append_to
from disttest.errors import ExitCode, PluginError
from disttest.hookspecs import hookimpl
from disttest.host.oom import volunteer_for_oom
from disttest.host.process import Child, die_with_parent, flush_output, fork_child, leave, leave_if_copy
from disttest.model import Isolation, Outcome, WorldShape
from disttest.planning.backends import backend_named
from disttest.plugin_manager import plugin_manager, plugins_differ
from disttest.runtime.messages.collected import describe_collected
from disttest.runtime.messages.phases import PhaseCell
from disttest.runtime.messages.protocol import (
    Channel,
    Collected,
    Leave,
    PhaseEnded,
    RankReady,
    RunTest,
    TestDone,
    TornDown,
    clean_text,
)
from disttest.runtime.messages.raised import describe_raised, is_skip
from disttest.runtime.rank import flight, state_snapshot, watchdog
from disttest.runtime.rank.bridge import Bridge
from disttest.runtime.rank.child import (
    close_in_forks,
    redirect_output,
    register_stacks,
    renew_libraries,
    use_cuda_freely,
    with_high_descriptor,
)
from disttest.runtime.rank.loaded_facets import take_facet_errors
from disttest.runtime.rank.log_capture import speed_up_log_capture
from disttest.runtime.rank.own_store import connect_to_own_store, follow_own_port
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.rank.rank_test import Rank, RankTest
from disttest.runtime.rank.waits import begin_waits, broken_groups, watch_waits
from disttest.testing.world import World, provide_world

_LAST_DETAILS = 20_000
"""Characters of the traceback of a fixture that fails as the rank leaves."""

ProcessMain = Callable[[RankSpec, Channel, pytest.Session, Mapping[str, pytest.Item]], None]
"""Main function of a process that a world has started, with the tests that it may run; it never returns."""


# A fork, because `import torch` takes 1 to 2 seconds, which N new interpreters would pay N times for each test.
# docs/decisions/0009-fork-from-the-collector.md
class ForkStarter:
    """Starts a rank as a fork of this process."""

    def __init__(self, session: pytest.Session, items: Mapping[str, pytest.Item]) -> None:
        self._session = session
        self._items = items

    def __call__(self, spec: RankSpec, channel: Channel, close: Sequence[int]) -> Child:
        """Fork; the child closes descriptors that belong to others, and serves."""

        def main() -> None:
            for fd in close:
                os.close(fd)
            live(spec, channel, self._session, self._items)

        # A process group for each rank: `os.killpg(0, …)` in a test reaches this rank and its children only, not the
        # world or the other ranks. As the leader of its group, a rank cannot call `os.setsid()`.
        return fork_child(main, new_group=True)


def live(spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]) -> None:
    """Become the process that the world asks for: a rank, a main process or an isolated one. Never returns."""
    # Every process of a world comes by here. Forks of a clean process collect for themselves, and may have
    # other plugins as well.
    if words := plugins_differ(
        spec.settings.plugins, plugin_manager().identity, "this process", "the command"
    ):
        _leave_with(words, spec)
    try:
        main = plugin_manager().call("disttest_process_main", spec=spec) or serve
    except PluginError as error:
        _leave_with(str(error), spec)
    main(spec, channel, session, items)


def _leave_with(words: str, spec: RankSpec) -> NoReturn:
    """End this process, which has no log yet."""
    # A write without buffers: the process exits right after it.
    os.write(append_to(spec.log), f"disttest: {words}\n".encode())
    leave(ExitCode.INTERNAL)


def run_as_rank(
    session: pytest.Session, spec: RankSpec, channel_fd: int, errors: Sequence[tuple[str, str]]
) -> None:
    """Serve the tests that this process has collected, or exit if it could not. Never returns.

    Args:
        session: the session that has collected.
        spec: specification of the rank.
        channel_fd: descriptor of its channel to the world.
        errors: node id and message of each file that could not be collected.
    """
    if errors:
        for nodeid, message in errors:
            os.write(2, f"this rank could not collect {nodeid}:\n{message}\n".encode())
        leave(ExitCode.INTERRUPTED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as in a fork; a conftest may have ignored it
    items = {item.nodeid: item for item in session.items}
    channel = Channel(socket.socket(fileno=channel_fd))
    channel.send(Collected(tests=describe_collected(session.items)))
    live(spec, channel, session, items)


class _Session:
    """State of this rank between messages; one per process."""

    def __init__(self, spec: RankSpec, channel: Channel, session: pytest.Session, phase: PhaseCell) -> None:
        self.spec = spec
        self.channel = channel
        self.session = session
        self.order: RunTest | None = None
        self.phase = phase
        self.rank = Rank(spec, session.config, channel)
        runs_one = spec.isolation is Isolation.FRESH
        self.restorer = state_snapshot.StateRestorer(
            state_snapshot.facets_of_one_test if runs_one else state_snapshot.facets_between_tests
        )
        self.shared = 0
        """Number of fixtures with a wider scope when the current phase of the running test began."""
        self.in_call = False

    def note_phase(self, phase: str, xfail: bool, by_assertion: bool) -> None:
        """Record that a phase of the running test begins."""
        self.phase.write(phase, xfail=xfail, by_assertion=by_assertion)
        followed_call, self.in_call = self.in_call, phase == "call"
        if phase == "setup":
            return
        shared = shared_fixtures(self.session)
        # Changes by fixtures of a wider scope must survive the test; _FixturesOfCalls sees those that its call sets up.
        if shared > self.shared and not followed_call:
            self.restorer.note_call()
        if shared and phase == "teardown":
            call_after_own_fixtures(self.session, self.restorer.note_teardown)
        self.shared = shared

    def scratch(self) -> Path:
        """Create the directory that the ranks of the running test share; skip the test if the nodes share none."""
        partition = self.spec.partition
        if partition is not None and not partition.shared_dir:
            pytest.skip("needs a directory that all nodes share: name one with --shared-dir")
        scratch = Path(self.running().scratch)
        scratch.mkdir(parents=True, exist_ok=True)
        return scratch

    def running(self) -> RunTest:
        """The order of the running test."""
        if self.order is None:
            raise LookupError("no test is running in this rank")
        return self.order

    def world(self) -> World:
        """The world of the running test, with its process group initialized."""
        self.join_group(self.running())
        shape = self.spec.shape
        return World(
            rank=self.spec.rank,
            size=shape.size,
            local_rank=self.spec.local_rank,
            backend=shape.backend,
            device_type=shape.device,
            scratch=self.scratch,
        )

    def join_group(self, order: RunTest) -> None:
        """Create the default process group, unless the previous test left it in place."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            return
        shape = self.spec.shape
        device_id = None
        if shape.device != "cpu":
            device_id = torch.device(shape.device, self.spec.device_index(torch.accelerator.device_count()))
            # Before the group: over NCCL, collectives of objects use the current device of the process.
            torch.accelerator.set_device_index(device_id.index)
        make_default_group(
            shape,
            self.spec.rank,
            (self.spec.master_address, self.spec.master_port),
            generation=order.generation,
            device_id=None if backend_named(shape.backend).shares_devices else device_id,
        )
        self.restorer.note_group()


class _FixturesOfCalls:
    """A pytest plugin: what a wider fixture changes that a call sets up by name stays, but no leak of the call itself."""

    def __init__(self, state: _Session) -> None:
        self._state = state

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Watch the set-up of a fixture."""
        if not self._state.in_call or fixturedef.scope == "function":
            return (yield)
        with self._state.restorer.accepting():
            return (yield)


def make_default_group(
    shape: WorldShape, rank: int, store: tuple[str, int], *, generation: int, device_id: Any = None
) -> None:
    """Create the default process group of a test.

    Args:
        shape: shape of the world.
        rank: rank of this process.
        store: address and port of the world's store.
        generation: number of tests that the world has run before; keeps the keys of tests apart.
        device_id: the GPU that NCCL binds to.
    """
    import torch.distributed as dist

    # The world hosts the store (docs/decisions/0013-world-serves-the-store.md): it outlives every rank, so
    # that no rank loses the store because rank 0 ended first.
    client = dist.TCPStore(*store, is_master=False)  # type: ignore[attr-defined]
    # A prefix per test: a key that one test left would otherwise satisfy the rendezvous of the next.
    dist.init_process_group(
        shape.backend,
        store=dist.PrefixStore(f"disttest/{generation}", client),  # type: ignore[attr-defined]
        rank=rank,
        world_size=shape.size,
        device_id=device_id,
    )
    # Also called here: in unobserved ranks no tool sees that a group is created.
    plugin_manager().call("disttest_group_made")


def serve(
    spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]
) -> None:
    """Run tests until the world sends Leave or closes the channel. Never returns."""
    # First of all, because it ties the life of this process to its world. A rank that failed before would be
    # left behind.
    channel = set_up_child(spec, channel, session.config)
    use_cuda_freely()
    # Started here, because this thread must not exist in a process that forks.
    flight.answer_questions(spec.questions, spec.rank)
    os.environ.update(spec.environment())  # noqa: TID251
    phase = PhaseCell(spec.phases, spec.place)
    is_reused = spec.isolation is not Isolation.FRESH
    # Before the state snapshot, which must contain the replaced functions of torch.
    watch_waits(spec.watches, spec.place, is_reused=is_reused)
    follow_own_port(spec.master_port)
    connect_to_own_store(spec)
    state = _Session(spec, channel, session, phase)
    plugins = plugin_manager()
    plugins.call("disttest_rank_configure", rank=state.rank)
    plugins.add_core(Protocol(items), "protocol")
    provide_world(state.world, state.scratch)
    Bridge(channel, session.config, on_phase=state.note_phase).take_over()
    session.config.pluginmanager.register(_FixturesOfCalls(state), "disttest-fixtures-of-calls")
    own_tmp_path(session.config, spec.scratch)
    speed_up_log_capture()
    channel.send(RankReady())
    while (message := next_order(channel)) is not None and _run(state, message, session, items):
        pass
    channel.send(tear_down_rest(session))
    save()
    _destroy_accelerator_group(spec.shape)
    leave(0)


def set_up_child(spec: RankSpec, channel: Channel, config: pytest.Config) -> Channel:
    """Set up a child of a world; return its channel on a descriptor that tests do not touch."""
    # Before anything that can block or fail: a rank without its world would hold its GPU.
    die_with_parent(spec.world_pid)
    volunteer_for_oom()
    # The parent's handlers would run the parent's code in this process.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The world blocks SIGTERM, because it reads the signal from a descriptor.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    channel = with_high_descriptor(channel)
    close_in_forks(channel)
    redirect_output(config, spec.log)
    register_stacks(spec.stacks)
    # Before any test can start faulthandler's timer.
    watchdog.count_starts()
    renew_libraries(spec.threads)
    plugin_manager().call("disttest_process_configure", spec=spec, config=config)
    return channel


def next_order(channel: Channel) -> RunTest | None:
    """Wait for the next test; return None when the rank must leave."""
    while not channel.closed_by_peer:
        # A message behind the order stays in the socket: it may be the cancellation of the test, which the main
        # process of a class awaits there.
        for message in channel.receive(ahead=False):
            if isinstance(message, RunTest):
                return message
            if isinstance(message, Leave):
                return None
    return None


def serve_orders(
    spec: RankSpec,
    channel: Channel,
    session: pytest.Session,
    run: Callable[[RunTest], None],
    *,
    silences: Callable[[object], bool] = lambda _: True,
    finish: Callable[[], int] = lambda: 0,
) -> int:
    """Run tests in a process that is not a rank, once it is set up, and tear down their last fixtures.

    Args:
        spec: specification of the process.
        channel: channel to its world.
        session: pytest's session.
        run: runs one test.
        silences: whether to remove the reporting hooks of a plugin.
        finish: called after the tear-down; returns an exit code.

    Returns:
        The exit code for the process.
    """
    phase = PhaseCell(spec.phases, spec.place)

    def note_phase(name: str, xfail: bool, by_assertion: bool) -> None:
        phase.write(name, xfail=xfail, by_assertion=by_assertion)

    bridge = Bridge(channel, session.config, on_phase=note_phase)
    bridge.take_over(silences=silences)
    own_tmp_path(session.config, spec.scratch)
    channel.send(RankReady())
    while (order := next_order(channel)) is not None:
        run(order)
    torn_down = tear_down_rest(session)
    try:
        return finish()
    finally:
        # Last: a process that has sent this message and does not leave is killed without a word about its test.
        channel.send(torn_down)


def save() -> str:
    """Have plugins write the data that they have gathered: the next test may end this process.

    Returns:
        The error of a plugin that failed; empty if none did.
    """
    return _call_plugins("disttest_process_saves")


def run_protocol(items: Mapping[str, pytest.Item], order: RunTest) -> None:
    """Run pytest's protocol of a test. If the test forked and the copy returns here as well, end the copy."""
    following = items.get(order.next_nodeid) if order.next_nodeid else None
    item = items[order.nodeid]
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    # A test that calls os.fork and lets the child return would report each result twice, once from each
    # process.
    leave_if_copy()


def _run(state: _Session, order: RunTest, session: pytest.Session, items: Mapping[str, pytest.Item]) -> bool:
    """Run a test; return whether this rank can run another one."""
    # The previous test may have closed or replaced the standard streams.
    redirect_output(session.config, Path(order.log))
    register_stacks(state.spec.stacks)
    flight.note_start()
    state.order = order
    state.shared = shared_fixtures(session)
    state.restorer.begin(shared_fixtures=bool(state.shared))
    # The same on all ranks, and independent of the tests that ran before. `hash()` depends on PYTHONHASHSEED.
    seed = zlib.crc32(order.nodeid.encode()) ^ state.spec.settings.seed
    state_snapshot.reseed(seed)
    test = RankTest(state.rank, order, items[order.nodeid], seed)
    plugin_error = run_with_plugins(test)
    shared = bool(left_set_up := shared_fixtures(session))
    cleanup = state.restorer.end(shared_fixtures=shared, torn_down=left_set_up < state.shared)
    left: list[str] = []
    plugin_error = plugin_error or _error_of(lambda: left.extend(_leaks_of_plugins(shared_fixtures=shared)))
    # Before `TestDone`: once all ranks are done, the world cuts, masks and closes the log.
    flush_output()
    plugin_error = plugin_error or save()
    leaks = (*cleanup.leaks, *left, *watchdog.stop_leftover())
    # Sent after the state is restored and the plugins have saved: the world may end this process on receipt.
    state.channel.send(
        TestDone(
            leaks=tuple(map(clean_text, leaks)),
            # With several nodes, no world knows when the ranks of the other nodes are done with the store.
            retire=cleanup.retire or bool(cleanup.store_keys and state.spec.partition),
            store_keys=cleanup.store_keys,
            broken=tuple(map(clean_text, broken_groups())),
            shares=shared,
            seen=test.reported,
            plugin_error=plugin_error or clean_text(take_facet_errors()),
            exit_code=0 if test.leaves else None,
        )
    )
    return not test.leaves


class Protocol:
    """The core's implementation of a test run, which plugins wrap."""

    def __init__(self, items: Mapping[str, pytest.Item]) -> None:
        self._items = items

    @hookimpl
    def disttest_rank_test(self, test: RankTest) -> bool:
        """Run pytest's protocol."""
        run_protocol(self._items, test.order)
        return True


def run_with_plugins(test: RankTest) -> str:
    """Run a test inside the wrappers of plugins; return the error of one that failed, otherwise an empty string."""
    return _error_of(begin_waits) or _call_plugins("disttest_rank_test", test=test)


def _call_plugins(hook: str, **arguments: Any) -> str:
    return _error_of(functools.partial(plugin_manager().call, hook, **arguments))


def _error_of(call: Callable[[], object]) -> str:
    """Call a plugin; return its error, otherwise an empty string."""
    try:
        call()
    except PluginError as error:
        return clean_text(f"{error}\n{error.trace}")
    return ""


def _leaks_of_plugins(*, shared_fixtures: bool) -> list[str]:
    found = plugin_manager().items("disttest_leaks", str, shared_fixtures=shared_fixtures)
    return [leak for _, leak in found]


def own_tmp_path(config: pytest.Config, base: Path) -> None:
    """Give this process a separate base directory for ``tmp_path``."""
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        base.mkdir(parents=True, exist_ok=True)
        # pytest has no public way to set the base after the configuration (pytest 8.4 to 9.2).
        factory._basetemp = base  # noqa: SLF001


def shared_fixtures(session: pytest.Session) -> int:
    """Count the fixtures of a wider scope than one test that are set up; each node adds one finalizer of its own."""
    # pytest has no public list of active fixtures (pytest 8.4 to 9.2); its shape: https://github.com/pytest-dev/pytest/pull/8219
    stack = session._setupstate.stack  # noqa: SLF001
    wider = (finalizers for node, (finalizers, _) in stack.items() if not isinstance(node, pytest.Item))
    return sum(len(finalizers) - 1 for finalizers in wider)


def call_after_own_fixtures(session: pytest.Session, call: Callable[[], object]) -> None:
    """Call between the tear-down of the running test's own fixtures and that of wider ones."""
    # pytest has no hook between the two (pytest 8.4 to 9.2); it calls the finalizers of a node in reverse.
    node, (finalizers, _) = next(reversed(session._setupstate.stack.items()))  # noqa: SLF001
    if isinstance(node, pytest.Item):
        finalizers.insert(0, call)  # the first one is called last
    else:  # the set-up of a wider node has failed
        call()


def tear_down_rest(session: pytest.Session) -> TornDown:
    """Tear down the fixtures that remain when a world ends early; an error is that of the last test's tear-down."""
    began_s = monotonic()
    try:
        # pytest has no public way to tear down the fixtures of a session that ends early (pytest 8.4 to 9.2).
        session._setupstate.teardown_exact(None)  # noqa: SLF001
    # Any exception of a fixture, `pytest.exit` and SystemExit included, is a failure to report. Unreported,
    # it would be a crash of the rank.
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        if is_skip(error):
            return TornDown()
        raised = describe_raised(error)
        return TornDown(
            failure=PhaseEnded(
                phase="teardown",
                outcome=Outcome.ERROR,
                duration_s=monotonic() - began_s,
                ended_at_s=monotonic(),
                message=clean_text(raised.message)[:2000],
                # The world reads it once this process has ended, so it has to fit into the socket.
                details=clean_text(raised.details)[-_LAST_DETAILS:],
            )
        )
    return TornDown()


def _destroy_accelerator_group(shape: WorldShape) -> None:
    """Destroy the group of an accelerator, as NCCL expects."""
    dist = sys.modules.get("torch.distributed")
    # On gloo the end of the process closes the connections just as well, and saves 20 ms.
    if shape.device != "cpu" and dist is not None and dist.is_initialized():
        dist.destroy_process_group()
