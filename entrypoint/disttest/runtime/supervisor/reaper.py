"""Reaper: ends the remaining processes of a run if command, pytest and world are killed together.

Command, controller and world each adopt the processes that their descendants leave behind. If all of them die, a daemon
that a test started becomes a child of init, and the process tree does not show its origin. The environment it was
started with does. cgroups would need no mark, but they need rights that few runners grant.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from disttest.host.process import Child, end_all, fork_child, kill_overdue, outlive
from disttest.limits import REAPER_ORDERLY_S, REAPER_POLL_S

MARK_VARIABLE = "_DISTTEST_RUN"


class Reaper:
    """A process outside the run's tree that acts only if the command is killed. Starting it takes 1 ms."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)
        self._child: Child | None = None
        # The command's end of a pipe, which the kernel closes when the command dies.
        self._line = -1

    def start(self) -> None:
        """Start the reaper; a process of the run must have been started."""
        read, self._line = os.pipe()
        # A session of its own, so that a signal to the command's process group does not end it.
        self._child = fork_child(lambda: _keep(read, self._mark), new_session=True)
        os.close(read)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process id of the reaper, which does not belong to the run."""
        return (self._child.pid,) if self._child else ()

    @property
    def environment(self) -> dict[str, str]:
        """Environment that marks the processes of the run."""
        return {MARK_VARIABLE: self._token}

    @property
    def _mark(self) -> bytes:
        return f"{MARK_VARIABLE}={self._token}".encode()

    def dismiss(self) -> None:
        """End the reaper after a run that ended in order."""
        if self._child is not None:
            # Before the line is closed: the reaper would take its end for the death of the command.
            end_all([self._child])
            self._child.close()
            os.close(self._line)


def _keep(line: int, mark: bytes) -> None:
    outlive(line)
    kill_overdue(lambda: [*_marked(mark)], orderly_s=REAPER_ORDERLY_S, poll_s=REAPER_POLL_S)


def _marked(mark: bytes) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # /proc shows the environment at the start of a process; changes by the process do not matter.
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        # The process has ended, or belongs to another user.
        except OSError:
            continue
