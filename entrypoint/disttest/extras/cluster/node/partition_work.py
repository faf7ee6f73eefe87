"""Work of an agent with a part of worlds that span nodes: a pytest process that collects and forks ranks."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from disttest.descriptors import append_to
from disttest.extras.cluster import NAME
from disttest.extras.cluster.node.assignment import NodeAssignment
from disttest.extras.cluster.node.partition import PartitionOrder
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.wire import CancelJob
from disttest.host.lines import Lines
from disttest.host.process import Exit, spawn_child
from disttest.options.environment import hash_seed
from disttest.planning.targets import resolve_targets
from disttest.runtime.controller.orders import PluginOrder, Shared, given_order
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.supervisor.run_supervisor import pytest_command

_CHUNK = 1 << 16


class PartitionWork:
    """A pytest process for a node's part of worlds (see :mod:`disttest.extras.cluster.node.partition`)."""

    title = "pytest"

    def __init__(self, job: JobSpec, assignment: NodeAssignment, folder: Path) -> None:
        self._job = job
        self.output = folder / "pytest.log"
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._said = Lines()
        self._at_end = False
        flags = {**job.flags, "results": str(folder / "results")}
        (folder / "results").mkdir()
        argv = pytest_command(
            resolve_targets(job.targets),
            flags,
            [
                *job.pytest_arguments,
                f"--basetemp={folder / 'tmp'}",
                "-p",
                "no:cacheprovider",
            ],
        )
        log = append_to(self.output)
        seed = hash_seed(int(job.flags.get("seed", "") or 0))  # the same on all nodes
        order = PluginOrder(
            shared=Shared(
                supervisor=os.getpid(),
                host=msgspec.json.decode(job.collected_for, type=TargetHost) if job.collected_for else None,
                data={NAME: [test.nodeid for test in job.tests]},
            ),
            plugin=NAME,
            work=PartitionOrder(job=job, assignment=assignment, fd=theirs.fileno()),
        )
        with given_order(order, theirs.fileno()) as (argument, descriptors):
            self.child = spawn_child(
                [*argv, argument],
                extra_env=seed,
                pass_fds=descriptors,
                stdout=log,
                new_session=True,
            )
        os.close(log)
        theirs.close()
        self._line.setblocking(False)

    def descriptors(self) -> list[int]:
        """Return the socket of the pytest process."""
        return [] if self._at_end else [self._line.fileno()]

    def lines(self) -> Iterator[bytes]:
        """Yield its messages."""
        with contextlib.suppress(BlockingIOError):
            while not self._at_end:
                chunk = self._receive()
                self._at_end = not chunk
                yield from filter(None, self._said.feed(chunk))

    def _receive(self) -> bytes:
        try:
            return self._line.recv(_CHUNK)
        except ConnectionResetError:
            return b""

    def handle_order(self, line: bytes) -> None:
        """Pass an order on; orders are short, and the process always reads them."""
        self._line.setblocking(True)
        with contextlib.suppress(OSError):
            self._line.sendall(line + b"\n")
        self._line.setblocking(False)

    def cancel(self, reason: str) -> None:
        """Ask it to end its world, with evidence."""
        self.handle_order(msgspec.json.encode(CancelJob(reason=reason)))

    def has_failed(self, ended: Exit) -> bool:
        """Return whether pytest ended otherwise than after tests, or without any."""
        return ended.code not in (0, 1, 5)
