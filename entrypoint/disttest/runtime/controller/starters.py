"""Start a rank as a fork of this process, and become a rank in a process that has collected its tests."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import pytest

from disttest.descriptors import append_to
from disttest.errors import ExitCode, PluginError
from disttest.host.process import Child, fork_child, leave
from disttest.plugin_manager import plugin_manager, plugins_differ
from disttest.runtime.controller.orders import RankOrder
from disttest.runtime.messages.collected import describe_collected
from disttest.runtime.messages.protocol import Channel, Collected
from disttest.runtime.rank.rank import serve
from disttest.runtime.rank.rank_spec import RankSpec

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

        return fork_child(main, new_group=True)


def live(spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]) -> None:
    """Become the process that the world asks for: a rank, a main process or an isolated one. Never returns."""
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


def run_as_rank(session: pytest.Session, order: RankOrder, errors: Sequence[tuple[str, str]]) -> None:
    """Serve the tests that this process has collected, or exit if it could not. Never returns.

    Args:
        session: the session that has collected.
        order: order of this process.
        errors: node id and message of each file that could not be collected.
    """
    if errors:
        for nodeid, message in errors:
            os.write(2, f"this rank could not collect {nodeid}:\n{message}\n".encode())
        leave(ExitCode.INTERRUPTED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as in a fork; a conftest may have ignored it
    items = {item.nodeid: item for item in session.items}
    channel = Channel(socket.socket(fileno=order.channel_fd))
    channel.send(Collected(tests=describe_collected(session.items)))
    live(order.spec, channel, session, items)
