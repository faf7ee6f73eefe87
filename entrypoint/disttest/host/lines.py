"""Lines out of a pipe, a socket or a file that grows: each comes in pieces, and a line may end in a later one."""

from __future__ import annotations

LONGEST_LINE = 1 << 28
"""Bytes of one message: the texts of all ranks of a test that fails, with room to spare."""


class Lines:
    """Bytes in, whole lines out.

    Args:
        longest: a line that goes on after that is cut, one byte behind it: nobody's memory is filled by a writer who
            ends no line.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self.rest = bytearray()
        """The line that has no end yet."""
        self._longest = longest

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that these bytes complete, without their ends."""
        first, *others = chunk.split(b"\n")
        self.rest += first[: max(0, self._longest + 1 - len(self.rest))]
        if not others:
            return []
        whole = [bytes(self.rest), *others[:-1]]
        self.rest = bytearray(others[-1])
        return whole
