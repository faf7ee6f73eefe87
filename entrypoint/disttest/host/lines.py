"""Lines from a pipe, a socket or a growing file. Data arrives in pieces, and a line may end in a later one."""

from __future__ import annotations

LONGEST_LINE = 1 << 28
"""Size limit of one message in bytes. It has room for the texts of all ranks of a failing test."""


class Lines:
    """A splitter of bytes into lines.

    Args:
        longest: limit of a line in bytes. The rest of a longer line is dropped, so that a writer without line ends
            cannot fill the memory.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self.rest = bytearray()
        """The unfinished line."""
        self._longest = longest

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that these bytes complete, without their line ends."""
        first, *others = chunk.split(b"\n")
        # One byte more than the limit is kept: readers recognise a line that was cut by its length.
        self.rest += first[: max(0, self._longest + 1 - len(self.rest))]
        if not others:
            return []
        whole = [bytes(self.rest), *others[:-1]]
        self.rest = bytearray(others[-1])
        return whole
