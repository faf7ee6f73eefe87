"""Lines of wrapped base64 that contain a part of a value: ``base64``, MIME and PEM break it after 64 or 76 characters.

The break may lie anywhere in the value, and a log or a report writes something before each line. So each line is judged
alone: every eight characters in a row that the encoded value contains are hidden. Innocent text does not contain them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator

# Eight characters are 48 bits, which innocent text does not match by chance.
_WINDOW = 8
_ALPHABET = rb"[A-Za-z0-9+/_-]"
# Shorter words are most of a log. The last line of wrapped base64 may be as short.
_LINE = re.compile(_ALPHABET + rb"{16,}")
_LAST_LINE = re.compile(_ALPHABET + rb"{%d,}" % _WINDOW)
_AT_END = re.compile(_ALPHABET + rb"{%d,}\Z" % _WINDOW)
_GAP = 80
"""Bytes from the end of a line to its continuation: the prefix of a report, escapes, spaces."""
_MOST = 1 << 14
"""Bytes of a value whose lines are found: each costs memory in every process of the run."""


def encodings(raw: bytes) -> Iterator[bytes]:
    """Yield a value in base64 and base64url, behind any other bytes; characters that depend on its neighbours are left out."""
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            # A character has 6 bits. Those that also hold bits of the bytes before or behind the value are
            # unknown.
            yield encode(b"\0" * shift + raw)[-(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6]


class EncodedLines:
    """Finds parts of encoded values."""

    def __init__(self) -> None:
        self._windows: set[bytes] = set()

    def add(self, values: Iterable[str]) -> None:
        """Find these values, too."""
        for value in values:
            for text in encodings(value.encode("utf-8", "surrogatepass")[:_MOST]):
                self._windows.update(text[at : at + _WINDOW] for at in range(len(text) - _WINDOW + 1))

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield start and end of each part."""
        for line in _LINE.finditer(data) if self._windows else ():
            end = 0
            for start, end in self._within(data, *line.span()):
                yield start, end
            for last in _LAST_LINE.finditer(data, end, end + _GAP) if end == line.end() else ():
                yield from self._within(data, *last.span())

    def unfinished(self, data: bytes) -> int:
        """Return the number of bytes at the end that may be continued by the next piece of a stream."""
        # A longer run of such characters could hold back a stream for as long as it lasts.
        run = _AT_END.search(data[-_MOST:]) if self._windows else None
        spans = list(self._within(run[0], 0, len(run[0]))) if run is not None else []
        return len(run[0]) - spans[-1][0] if run and spans and spans[-1][1] == len(run[0]) else 0

    def _within(self, data: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
        at = start
        while at + _WINDOW <= stop:
            begin = at
            while at + _WINDOW <= stop and data[at : at + _WINDOW] in self._windows:
                at += 1
            if at > begin:
                at += _WINDOW - 1
                yield begin, at
            else:
                at += 1
