"""Signals that a supervisor records, so that one loop waits for them and for all other events."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection


class NotedSignals:
    """Signals of this process as bytes in a pipe."""

    # There can be one per process, because the interpreter writes to one pipe only.

    def __init__(self, signums: Collection[int]) -> None:
        """Record these signals from now on; they no longer interrupt anything."""
        self._signums = frozenset(signums)
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # set first, so that every signal with a handler is recorded
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for signum in signums:
            signal.signal(signum, lambda *_: None)

    def fileno(self) -> int:
        """Return the descriptor that is readable once a signal has arrived."""
        return self._reader

    def first(self) -> int | None:
        """Return the first signal since the last call; the others are dropped."""
        try:
            numbers = os.read(self._reader, 64)
        except BlockingIOError:
            return None
        return next((number for number in numbers if number in self._signums), None)

    def close(self) -> None:
        """Close the pipe. The signals are ignored from now on, because the process is about to end."""
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)
