"""The work of an agent whose node has a share of spanning worlds: a pytest process that collects and forks ranks."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from disttest.cluster.job import JobSpec
from disttest.cluster.place import Place
from disttest.cluster.share import ShareOrder
from disttest.cluster.wire import CancelJob
from disttest.host.process import spawn_child
from disttest.planning.targets import resolve_targets
from disttest.running.guard import pytest_command

_CHUNK = 1 << 16
_TAIL = 4096


class ShareWork:
    """A pytest process that serves a node's share (see :mod:`disttest.cluster.share`)."""

    def __init__(self, job: JobSpec, place: Place, folder: Path) -> None:
        self._job = job
        self._place = place
        self._output = folder / "pytest.log"
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._rest = b""
        self._at_end = False
        (folder / "share.json").write_bytes(
            msgspec.json.encode(ShareOrder(job=job, place=place, fd=theirs.fileno()))
        )
        (folder / "tests.json").write_bytes(msgspec.json.encode([test.nodeid for test in job.tests]))
        flags = {**job.flags, "results": str(folder / "results")}
        (folder / "results").mkdir()
        argv = pytest_command(
            resolve_targets(job.targets),
            flags,
            [
                *job.pytest_arguments,
                f"--disttest-only={folder / 'tests.json'}",
                f"--disttest-node-share={folder / 'share.json'}",
                f"--disttest-host={job.collected_for}",
                f"--basetemp={folder / 'tmp'}",
                "-p",
                "no:cacheprovider",
            ],
        )
        log = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.child = spawn_child(argv, pass_fds=[theirs.fileno()], stdout=log, new_session=True)
        os.close(log)
        theirs.close()
        self._line.setblocking(False)

    def descriptors(self) -> list[int]:
        """The line to it."""
        return [] if self._at_end else [self._line.fileno()]

    def lines(self) -> Iterator[bytes]:
        """What it has said."""
        with contextlib.suppress(BlockingIOError):
            while not self._at_end:
                chunk = self._receive()
                self._at_end = not chunk
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                yield from (line for line in whole if line)

    def _receive(self) -> bytes:
        try:
            return self._line.recv(_CHUNK)
        except ConnectionResetError:
            return b""

    def obey(self, line: bytes) -> None:
        """Pass an order on; orders are short, and it always listens."""
        self._line.setblocking(True)
        with contextlib.suppress(OSError):
            self._line.sendall(line + b"\n")
        self._line.setblocking(False)

    def cancel(self, reason: str) -> None:
        """Have it end its world, with evidence."""
        self.obey(msgspec.json.encode(CancelJob(reason=reason)))

    def obituary(self) -> str:
        """Why it ended, if not as told."""
        ended = self.child.poll()
        if ended is None or ended.code in (0, 1, 5):
            return ""
        tail = self._output.read_text(errors="replace")[-_TAIL:] if self._output.exists() else ""
        return f"pytest on node {self._place.host} ended with {ended}:\n{tail}"
