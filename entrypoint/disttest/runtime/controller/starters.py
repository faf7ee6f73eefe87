"""The two ways to start a rank: fork this process, or (where that is unsafe) a fresh interpreter."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

import disttest
from disttest.descriptors import append_to
from disttest.errors import ExitCode, PluginError
from disttest.host.process import Child, fork_child, leave, spawn_child
from disttest.masking import masker
from disttest.options.environment import hash_seed
from disttest.plugin_manager import plugin_manager, plugins_differ
from disttest.runtime.controller.orders import InterpreterOrder, write_order
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.messages.collected import describe_collected
from disttest.runtime.messages.protocol import Channel, Collected
from disttest.runtime.rank.child import use_cuda_freely
from disttest.runtime.rank.rank import serve
from disttest.runtime.rank.rank_spec import RankSpec

ProcessMain = Callable[[RankSpec, Channel, pytest.Session, Mapping[str, pytest.Item]], None]
"""The life of a process that a world has started, with the tests that it may be told to run; it never returns."""


class ForkStarter:
    """Starts a rank as a fork of this process."""

    def __init__(self, session: pytest.Session, items: Mapping[str, pytest.Item]) -> None:
        self._session = session
        self._items = items

    def __call__(self, spec: RankSpec, channel: Channel, close: Sequence[int]) -> Child:
        """Fork; the child closes what is not its own and serves."""

        def main() -> None:
            for fd in close:
                os.close(fd)
            live(spec, channel, self._session, self._items)

        return fork_child(main, new_group=True)


def live(spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]) -> None:
    """Be what the world asks for: a rank, the main process of tests that start theirs, or an ordinary one. Never returns."""
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
    """End this process, which has no log of its own yet."""
    os.write(append_to(spec.log), f"disttest: {words}\n".encode())
    leave(ExitCode.INTERNAL)


def be_a_rank(session: pytest.Session, order: InterpreterOrder, errors: Sequence[tuple[str, str]]) -> None:
    """Serve with what this process has collected by itself, or leave with what it could not. Never returns.

    Args:
        session: the one that has collected.
        order: what this process was told.
        errors: node id and message of each file that could not be collected.
    """
    if errors:
        for nodeid, message in errors:
            os.write(2, f"this rank could not collect {nodeid}:\n{message}\n".encode())
        leave(ExitCode.INTERRUPTED)
    items = {item.nodeid: item for item in session.items}
    channel = Channel(socket.socket(fileno=order.channel_fd))
    channel.send(Collected(tests=describe_collected(session.items)))
    live(order.spec, channel, session, items)


class InterpreterStarter:
    """Starts a rank as ``python -m pytest``, which collects the files that it needs and nothing else."""

    def __init__(self, arguments: Sequence[str], modules: Sequence[str], host: TargetHost) -> None:
        self._arguments = tuple(arguments)
        self._modules = tuple(modules)
        self._host = host

    def __call__(self, spec: RankSpec, channel: Channel, close: Sequence[int]) -> Child:
        """Spawn; the descriptors that are not its own are not inherited."""
        del close
        use_cuda_freely()  # what keeps a process forkable is not inherited
        order = InterpreterOrder(
            spec=spec, channel_fd=channel.fileno(), modules=self._modules, host=self._host
        )
        argv = [
            sys.executable,
            "-m",
            "pytest",
            *self._arguments,
            *write_order(order, order.path, masker.ledger),
        ]
        log = append_to(spec.log)
        try:
            return spawn_child(
                argv,
                extra_env={
                    # Not what only ranks have: a fork has imported its tests without it, and verdicts must not differ.
                    **spec.machine_environment(),
                    "PYTHONPATH": _import_path(),
                    **hash_seed(spec.settings.seed),
                },
                pass_fds=[channel.fileno(), *([masker.ledger] if masker.ledger >= 0 else [])],
                stdout=log,
                new_group=True,
            )
        finally:
            os.close(log)


def _import_path() -> str:
    """Where this very package is found, whatever the working directory has become, before what the user has set."""
    ours = str(Path(disttest.__file__).parents[1])
    return os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])  # noqa: TID251
