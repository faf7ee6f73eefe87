"""How the pytest process left, told to its supervisor beside the exit code, which a test may have chosen: ``os._exit(5)``.

The process writes into memory that it shares with the supervisor what it is doing, and at its orderly end that this was
one. Memory and not a file: a test that closes all descriptors must not make it speak into another file.
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
        super().__init__("disttest-leaving", _SIZE)

    @property
    def in_order(self) -> bool:
        """Whether the interpreter was shut down, so that the exit code is pytest's own."""
        return self._memory[:1] == _IN_ORDER

    @property
    def is_leaving(self) -> bool:
        """Whether pytest is done, and the interpreter is about to end."""
        # Exit handlers run from the last one on: some of those that wait come after the one that notes the order.
        return self._memory[:1] in (_LEAVING, _IN_ORDER)

    @property
    def doing(self) -> str:
        """What the process was doing last: ``importing test_x.py``."""
        text = bytes(self._memory[1:]).partition(b"\0")[0]
        return text.decode("utf-8", "replace") or "starting: a plugin or a conftest"


class LeaveNote:
    """The pytest process's side."""

    def __init__(self, fd: int | None) -> None:
        """Open it, and say at the end of the process that it ended in order.

        Args:
            fd: inherited from the supervisor; None where nobody wants to know.
        """
        self._memory: mmap.mmap | bytearray = bytearray(_SIZE)
        self._pid = _getpid()
        if fd is not None:
            self._memory = mmap.mmap(fd, _SIZE)
            os.close(fd)
            atexit.register(self._leave)

    def doing(self, what: str) -> None:
        """Say what is done from here on."""
        if _getpid() == self._pid:  # a copy of this process has nothing to say
            text = what.encode("utf-8", "replace")[: _SIZE - 2]
            self._memory[1 : len(text) + 2] = text + b"\0"

    def leaving(self, exit_blockers: str) -> None:
        """Say that pytest is done, and what may keep the process."""
        self.doing(exit_blockers)
        if _getpid() == self._pid:
            self._memory[:1] = _LEAVING

    def _leave(self) -> None:
        if _getpid() == self._pid:
            self._memory[:1] = _IN_ORDER
