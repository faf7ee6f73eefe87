"""How the pytest process ended, in addition to its exit code, which a test may have chosen: ``os._exit(5)``.

The process writes its current activity, and finally its orderly end, into memory shared with the supervisor. It is not
a file: after a test has closed all descriptors, the process could write into another file.
"""

from __future__ import annotations

import atexit
import mmap
import os

from disttest.boards import Board

# Bound at import: tests may monkeypatch os.getpid.
_getpid = os.getpid

_SIZE = 4096
_IN_ORDER = b"\1"
_LEAVING = b"\2"


class LeaveBoard(Board):
    """The supervisor's side."""

    def __init__(self) -> None:
        # One state byte, then a text that ends with a null byte.
        super().__init__("disttest-leaving", _SIZE)

    @property
    def in_order(self) -> bool:
        """Whether the interpreter shut down in order, so that the exit code is pytest's own."""
        return self._memory[:1] == _IN_ORDER

    @property
    def is_leaving(self) -> bool:
        """Whether pytest has finished and the interpreter is about to end."""
        # Exit handlers run in reverse order of registration: some that block run after the one that records the order.
        return self._memory[:1] in (_LEAVING, _IN_ORDER)

    @property
    def doing(self) -> str:
        """Last activity of the process: ``importing test_x.py``."""
        text = bytes(self._memory[1:]).partition(b"\0")[0]
        return text.decode("utf-8", "replace") or "starting: a plugin or a conftest"


class LeaveNote:
    """The pytest process's side."""

    def __init__(self, fd: int | None) -> None:
        """Open the shared memory, and record an orderly end at exit.

        Args:
            fd: descriptor inherited from the supervisor; None without a supervisor.
        """
        self._memory: mmap.mmap | bytearray = bytearray(_SIZE)
        self._pid = _getpid()
        if fd is not None:
            self._memory = mmap.mmap(fd, _SIZE)
            os.close(fd)
            # Registered before any test runs, so it runs after the exit handlers of tests: Python starts with
            # the last one.
            atexit.register(self._leave)

    def doing(self, what: str) -> None:
        """Record the current activity."""
        # A fork of this process must not write here.
        if _getpid() == self._pid:
            text = what.encode("utf-8", "replace")[: _SIZE - 2]
            self._memory[1 : len(text) + 2] = text + b"\0"

    def leaving(self, exit_blockers: str) -> None:
        """Record that pytest has finished, and the objects that may keep the process alive."""
        self.doing(exit_blockers)
        if _getpid() == self._pid:
            self._memory[:1] = _LEAVING

    def _leave(self) -> None:
        if _getpid() == self._pid:
            self._memory[:1] = _IN_ORDER
