"""The two ways to start a rank: fork this process, or (where that is unsafe) a fresh interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

import disttest
from disttest.host.process import Child, fork_child, spawn_child
from disttest.masking import masker
from disttest.model import Frozen, Kind
from disttest.running.collect import Host
from disttest.running.hosting.main import serve_main
from disttest.running.protocol import Channel
from disttest.running.rank import RankSpec, serve


class InterpreterOrder(Frozen):
    """What a rank in a fresh interpreter is told through its command line: a JSON file."""

    spec: RankSpec
    channel_fd: int
    modules: tuple[str, ...]
    """The files to collect; all others are ignored."""
    host: Host
    """The machine as the controller sees it: a rank sees less, and would make other tests of it."""


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

        return fork_child(main)


def live(spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]) -> None:
    """Be what the world asks for: a rank, or the main process of tests that start theirs. Never returns."""
    life = serve if spec.kind is Kind.RANKS else serve_main
    life(spec, channel, session, items)


class InterpreterStarter:
    """Starts a rank as ``python -m pytest``, which collects the files that it needs and nothing else."""

    def __init__(self, arguments: Sequence[str], modules: Sequence[str], host: Host) -> None:
        self._arguments = tuple(arguments)
        self._modules = tuple(modules)
        self._host = host

    def __call__(self, spec: RankSpec, channel: Channel, close: Sequence[int]) -> Child:
        """Spawn; the descriptors that are not its own are not inherited."""
        del close
        folder = spec.scratch.parent
        order = folder / f"rank{spec.rank}.order.json"
        order.write_bytes(
            msgspec.json.encode(
                InterpreterOrder(
                    spec=spec, channel_fd=channel.fileno(), modules=self._modules, host=self._host
                ),
                enc_hook=str,
            )
        )
        argv = [sys.executable, "-m", "pytest", *self._arguments, f"--disttest-rank={order}"]
        if masker.ledger >= 0:
            argv.append(f"--disttest-ledger={masker.ledger}")
        log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            return spawn_child(
                argv,
                extra_env={**spec.environment(), "PYTHONPATH": _import_path()},
                pass_fds=[channel.fileno(), *([masker.ledger] if masker.ledger >= 0 else [])],
                stdout=log,
            )
        finally:
            os.close(log)


def _import_path() -> str:
    """Where this very package is found, whatever the working directory has become, before what the user has set."""
    ours = str(Path(disttest.__file__).parents[1])
    return os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])  # noqa: TID251


def read_order(path: Path) -> InterpreterOrder:
    """The order of a rank in a fresh interpreter."""
    return msgspec.json.decode(
        path.read_bytes(), type=InterpreterOrder, dec_hook=lambda kind, text: kind(text)
    )
