"""The command on a terminal of its own, with somebody who reads and answers."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

from lab import Ended, Lab


class Terminal:
    """The command on a terminal of its own; what it wrote there, as text."""

    def __init__(
        self, lab: Lab, *arguments: str, command: str = "run", columns: int = 100, **environ: str
    ) -> None:
        self.folder = lab.folder
        self.screen = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._reader, theirs = pty.openpty()
        self.device = os.ttyname(theirs)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        clean = {name: value for name, value in lab.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "disttest", command, *arguments],
            cwd=lab.folder,
            env=clean | {"TERM": "xterm-256color"} | environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, found: Callable[[str], bool], limit_s: float = 480) -> str:
        """Read until that is on the screen, or the command has ended; what takes longer than this never comes."""
        deadline = time.monotonic() + limit_s
        while not found(self.screen):
            ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.process.terminate()
                raise AssertionError(f"not seen in time:\n{self.screen}")
            try:
                block = os.read(self._reader, 65536)
            except OSError:  # the other side is closed
                break
            self.screen = (self.screen + self._decode(block)).replace("\r\n", "\n")
        return self.screen

    def answer(self, text: str) -> None:
        os.write(self._reader, text.encode())

    def close(self) -> None:
        """Close the window: the command has no terminal any more."""
        os.close(self._reader)

    def end(self) -> Ended:
        self.read_until(lambda _: False)
        os.close(self._reader)
        return Ended(self.process.wait(timeout=60), self.screen, self.folder / "results")
