"""Choose the process from which worlds are forked: this one or, if a module has made that unsafe, a clean one.

Only the files that cause the hazard are affected. The others are collected once more without those by a fork of the
fork server, and their worlds are forked from it with the tests in place, as from this process. Ranks of a file that
causes the hazard are forks of the fork server too, and each rank collects that file.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from disttest.host.compute_threads import limit_threads
from disttest.host.fork_hazard import holds_gpu
from disttest.host.fork_memory import freeze
from disttest.host.other_threads import threads
from disttest.host.process import Child
from disttest.limits import COLLECT_S, KILL_S
from disttest.model import Batch, Frozen
from disttest.plugin_manager import plugin_manager
from disttest.runtime.controller.collect import modules_of
from disttest.runtime.controller.fork_line import (
    Collect,
    ForkLine,
    ForkSourceLost,
    Recipe,
    WorldByLine,
    serve_line,
)
from disttest.runtime.controller.fork_server import ForkServer
from disttest.runtime.controller.hazards import Hazards
from disttest.runtime.controller.orders import ForkSourceOrder, order_of, own_arguments
from disttest.runtime.controller.run_recorder import RunRecorder
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.controller.world_pool import WorldByFork, WorldStarter
from disttest.runtime.rank import state_snapshot
from disttest.runtime.rank.rank import ForkStarter

# Maximum number of collections without hazardous files; a module that many files share is found in each.
_ROUNDS = 4
_CURE = "Start threads and touch CUDA inside tests or fixtures, not at import, and all are forked again."
_HELD = " What this process holds of its GPU is missing to the ranks until the run ends."


class CollectedFile(Frozen):
    """Result of a collector, in a file."""

    hazards: Hazards
    """False unless the collector must not be forked either."""
    tests: tuple[str, ...]
    """Node ids."""


# With this argument torch's ``python FILE --use-pytest`` makes its conftest treat the file as ``__main__``.
_MAIN_MODULE = "--use-main-module"


def _arguments_for_ranks(config: pytest.Config) -> tuple[str, ...]:
    """Arguments of processes that collect for ranks: those of this process, and those that plugins add."""
    more = plugin_manager().items("disttest_collecting_arguments", str, config=config)
    # In a process that collects for ranks, the file is not `__main__`.
    return (*(word for word in own_arguments(config) if word != _MAIN_MODULE), *(word for _, word in more))


@contextlib.contextmanager
def fork_sources(
    session: pytest.Session,
    items: Mapping[str, pytest.Item],
    hazards: Hazards,
    recorder: RunRecorder,
    *,
    host: TargetHost,
    scratch: Path,
    apart: bool,
) -> Iterator[Callable[[], ForkSources]]:
    """Create a :class:`ForkSources` on first use, once for a run, with notes for the reader; close it at the end.

    The arguments are those of :class:`ForkSources`.
    """
    with contextlib.ExitStack() as ending:

        @functools.cache
        def make() -> ForkSources:
            # On first use and once: both controllers of a run fork from the same processes. A run whose tests
            # are all skipped needs none.
            sources = ForkSources(
                session, items, hazards, host=host, scratch=scratch, clock=recorder.now, apart=apart
            )
            ending.callback(sources.close)
            reporter = session.config.pluginmanager.getplugin("terminalreporter")
            for message in sources.notes(hazards):
                recorder.noted(message, shown=reporter is not None)
                if reporter is not None:
                    reporter.write_line(f"disttest: {message}", yellow=True)
            return sources

        yield make


class ForkSources:
    """Chooses the process from which a world is forked.

    Args:
        session: the session that has collected.
        items: all tests with worlds or processes of their own, by node id.
        hazards: the reasons why this process must not be forked.
        host: the machine for which the tests were collected.
        scratch: folder for files of processes.
        clock: clock of the run.
        apart: whether every rank collects, even if this process could be forked.
    """

    def __init__(
        self,
        session: pytest.Session,
        items: Mapping[str, pytest.Item],
        hazards: Hazards,
        *,
        host: TargetHost,
        scratch: Path,
        clock: Callable[[], float],
        apart: bool,
    ) -> None:
        self._items = items
        self._clock = clock
        self._here = WorldByFork(ForkStarter(session, items), clock)
        self._spoilt = dict(hazards.by_file)
        self._fork_server: ForkServer | None = None
        self._collector: _Collector | None = None
        if not hazards and not apart:
            _rest_pools()
            return
        shared = msgspec.structs.replace(order_of(session.config).shared, host=host)
        arguments, removed = _arguments_for_ranks(session.config), tuple(plugin_manager().removed)
        recipe = Recipe(arguments=arguments, shared=shared, removed_plugins=removed)
        self._fork_server = ForkServer(
            scratch / "fork_server.log", recipe, session.config.invocation_params.dir
        )
        if not hazards.elsewhere and not apart:
            self._collector = self._collect_rest(scratch)

    def notes(self, hazards: Hazards) -> Iterator[str]:
        """Yield notes for the reader of the run; none if all worlds are forks of this process."""
        if self._fork_server is None or not hazards:
            return
        spared = (
            "Tests of other files are not affected: they were collected once more without it. Its own ranks"
            if self._collector
            else "Ranks"
        )
        whole = Hazards(by_file=self._spoilt, elsewhere=hazards.elsewhere)
        yield (
            f"forking is unsafe here: {whole}. {spared} come from a clean process instead, and each collects its "
            f"files by itself: slower, never wrong. {_CURE}{_HELD if holds_gpu() else ''}"
        )

    def starter_for(self, batch: Batch) -> WorldStarter:
        """Return how the world of a batch is started."""
        if self._fork_server is None:
            return self._here
        modules = modules_of([self._items[nodeid] for nodeid in batch.nodeids])
        collected = self._collector is not None and self._collector.has(batch.nodeids)
        line = self._collector.line if self._collector is not None and collected else self._fork_server
        return WorldByLine(line, modules, self._clock)

    def close(self) -> None:
        """End the processes."""
        # The collector first: it is a child of the fork server, which must still await it.
        if self._collector is not None:
            self._collector.close()
        if self._fork_server is not None:
            self._fork_server.close()

    def _collect_rest(self, scratch: Path) -> _Collector | None:
        """Collect the files that cause no hazard; None if there are none, or if that does not help."""
        assert self._fork_server is not None
        # Each round costs a collection of the run's files, and leaves out at least one more of them.
        for number in range(_ROUNDS):
            clean = [file for file in modules_of(list(self._items.values())) if file not in self._spoilt]
            if not clean:
                return None
            try:
                collector = _Collector(self._fork_server, clean, scratch / f"collector{number}.log")
            except ForkSourceLost:
                return None
            if not collector.hazards:
                return collector
            collector.close()
            if collector.hazards.elsewhere:
                return None
            # A module that several files import is found in the next file once the first is left out.
            self._spoilt |= collector.hazards.by_file
        return None


class _Collector:
    """The controller's handle of a fork of the fork server that has collected files.

    Raises:
        ForkSourceLost: the fork failed to collect.
    """

    def __init__(self, server: ForkServer, modules: Sequence[str], log: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        names = log.with_suffix(".json")
        names.write_bytes(msgspec.json.encode(modules))
        self.line = ForkLine(ours, log, limit_s=COLLECT_S)
        with theirs:
            self._child: Child = server.ask_for_child(
                Collect(modules=str(names), log=str(log)), theirs.fileno()
            )
        try:
            self.line.read()
        except ForkSourceLost:
            self.close()
            raise
        collected = msgspec.json.decode(names.with_suffix(".answer.json").read_bytes(), type=CollectedFile)
        self.hazards = collected.hazards
        self._tests = frozenset(collected.tests)

    def has(self, nodeids: Sequence[str]) -> bool:
        """Whether it has collected these tests."""
        return self._tests.issuperset(nodeids)

    def close(self) -> None:
        """Close the line and wait for the process to end."""
        self.line.line.close()
        with contextlib.suppress(ForkSourceLost):
            self._child.wait(KILL_S)
        self._child.close()


def _rest_pools() -> None:
    """Shrink thread pools that are safe to fork: this process needs none, and ranks do not inherit their size."""
    if threads():
        limit_threads(openmp=1, blas=1)


# --- in the collector


def serve_collected(session: pytest.Session, order: ForkSourceOrder, hazards: Hazards) -> NoReturn:
    """Report the collected tests, then fork worlds with them until the controller closes the line."""
    items = {item.nodeid: item for item in session.items}
    Path(order.answer).write_bytes(msgspec.json.encode(CollectedFile(hazards=hazards, tests=tuple(items))))
    _rest_pools()
    state_snapshot.look_before_forks()
    freeze()
    line = socket.socket(fileno=order.line_fd)
    # Last: the controller reads the file above when this arrives, and may ask for a world immediately.
    line.send(b"collected")
    serve_line(line, lambda _: ForkStarter(session, items))
