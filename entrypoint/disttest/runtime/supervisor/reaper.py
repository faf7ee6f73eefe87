"""Ends what a run leaves when nobody of it is left to do so: the command, its pytest and a world killed at once.

Each of these adopts what those below it leave behind. Where all of them die together, a daemon that a test has started
belongs to init, and nothing in the tree of processes says whose it was. Its first environment does.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
from collections.abc import Iterator
from pathlib import Path

from disttest.host.process import Child, end_all, fork_child, kill_overdue
from disttest.limits import REAPER_ORDERLY_S, REAPER_POLL_S

MARK_VARIABLE = "_DISTTEST_RUN"
NO_MARK = "0" * 32
"""As long as a mark: what a process is started with that will be marked later."""


class Reaper:
    """A process beside the run, which looks after it only if the command is killed."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)
        self._child: Child | None = None
        # The command's end of a pipe, which closes when it dies.
        self._line = -1

    def start(self) -> None:
        """Begin to watch over the run, of which a process has been started."""
        read, self._line = os.pipe()
        self._child = fork_child(lambda: _keep(read, self._mark), new_session=True)
        os.close(read)

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process, which is none of the run's."""
        return (self._child.pid,) if self._child else ()

    @property
    def environment(self) -> dict[str, str]:
        """What marks the processes of the run."""
        return {MARK_VARIABLE: self._token}

    @property
    def _mark(self) -> bytes:
        return f"{MARK_VARIABLE}={self._token}".encode()

    def dismiss(self) -> None:
        """The run has ended in order."""
        if self._child is not None:
            end_all([self._child])
            self._child.close()
            os.close(self._line)


def _keep(line: int, mark: bytes) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # whoever reads the command's output is not to wait for this process
        os.dup2(null, fd)
    os.closerange(3, line)
    os.closerange(line + 1, os.sysconf("SC_OPEN_MAX"))
    select.select([line], [], [])  # its other end closes with the command
    kill_overdue(lambda: [*_marked(mark)], orderly_s=REAPER_ORDERLY_S, poll_s=REAPER_POLL_S)


def _marked(mark: bytes) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:  # it has ended, or is none of ours
            continue
