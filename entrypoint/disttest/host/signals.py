"""Signals that a supervisor only notes, so that one loop waits for them and for everything else."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection


class NotedSignals:
    """Signals of this process as bytes in a pipe; one for a process, since the interpreter writes to one pipe only."""

    def __init__(self, signums: Collection[int]) -> None:
        """From here on these signals interrupt nothing."""
        self._signums = frozenset(signums)
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)  # first: what is caught is told, too
        for signum in signums:
            signal.signal(signum, lambda *_: None)

    def fileno(self) -> int:
        """Readable once a signal has come."""
        return self._reader

    def first(self) -> int | None:
        """The first of those that have come since it was asked last; the others are forgotten."""
        try:
            numbers = os.read(self._reader, 64)
        except BlockingIOError:
            return None
        return next((number for number in numbers if number in self._signums), None)

    def close(self) -> None:
        """Give the pipe back; the signals are ignored from here on, as whoever had them noted is about to end."""
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)
