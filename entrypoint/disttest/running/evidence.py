"""What a rank was doing: the Python stacks of all its threads, taken without its help.

faulthandler answers a real-time signal from C, so it works while the rank waits in a collective, and
writes to a file of its own, so that the dump can be told from the rank's output.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from disttest.host.process import STACKS_SIGNAL, Child

STACKS_HEADING = "[disttest: stacks of rank "
"""Begins the stacks in a rank's log."""

_SETTLED_S = 0.02
_MOST_KEPT = 64 * 1024


class StackSource:
    """A rank whose stacks can be asked for."""

    def __init__(self, child: Child, path: Path) -> None:
        self._child = child
        self._path = path
        self._seen = 0

    def ask(self) -> None:
        """Send the signal; a rank that has not set up its handler yet is not asked."""
        if self._path.exists():
            self._seen = self._path.stat().st_size
            self._child.signal(STACKS_SIGNAL)

    def answer_size(self) -> int:
        """Bytes that have arrived since the question."""
        return self._path.stat().st_size - self._seen if self._path.exists() else 0

    def read(self) -> str:
        """The answer so far; most recent call first, as faulthandler has it."""
        if not self._path.exists():
            return ""
        with self._path.open("rb") as file:
            file.seek(self._seen)
            return file.read(_MOST_KEPT).decode("utf-8", "replace").strip()


def take_stacks(sources: Sequence[StackSource], *, limit_s: float) -> list[str]:
    """Ask all at once, wait until the answers stop growing (or the limit), return one text per source."""
    for source in sources:
        source.ask()
    deadline = time.monotonic() + limit_s
    sizes: list[int] = []
    while time.monotonic() < deadline:
        now = [source.answer_size() for source in sources]
        if now == sizes and all(now):
            break
        sizes = now
        time.sleep(_SETTLED_S)
    return [source.read() for source in sources]
