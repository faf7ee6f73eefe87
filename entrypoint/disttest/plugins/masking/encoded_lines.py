"""Lines of wrapped base64 that contain a part of a value: ``base64``, MIME and PEM break it after 64 or 76 characters.

The break may lie anywhere in the value, and a log or a report writes something before each line. So each line is judged
alone: every eight characters in a row that the encoded value contains are hidden. Innocent text does not contain them, and
at most seven characters of a value remain at a break.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator

_WINDOW = 8
_RUN = re.compile(rb"[A-Za-z0-9+/_-]{%d,}" % _WINDOW)
_RUN_AT_END = re.compile(rb"[A-Za-z0-9+/_-]{%d,}\Z" % _WINDOW)
# Escaped line ends (`\n`, `%0A`) end with characters that would count as the first ones of the line after them.
_ESCAPES = {ord("\\"): 1, ord("%"): 2}
_MOST = 1 << 14
"""Bytes of a value whose lines are found: each costs memory in every process of the run."""


def encodings(raw: bytes) -> Iterator[bytes]:
    """Yield a value in base64 and base64url, behind any other bytes; characters that depend on its neighbours are left out."""
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
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
        """Yield start and end of each part: a line contains one at its beginning, at its end, or is one."""
        for run in _RUN.finditer(data) if self._windows else ():
            start, stop = run.span()
            start += _ESCAPES.get(data[start - 1], 0) if start else 0
            if data[start : start + _WINDOW] in self._windows:
                yield start, self._end(data, start, stop)
            if data[stop - _WINDOW : stop] in self._windows:
                yield self._start(data, start, stop), stop

    def unfinished(self, data: bytes) -> int:
        """Return the number of bytes at the end that may be continued by the next piece of a stream."""
        run = _RUN_AT_END.search(data[-_MOST:]) if self._windows else None
        if run is None or run[0][-_WINDOW:] not in self._windows:
            return 0
        return len(run[0]) - self._start(run[0], 0, len(run[0]))

    def _end(self, data: bytes, start: int, stop: int) -> int:
        at = start
        while at + _WINDOW < stop and data[at + 1 : at + 1 + _WINDOW] in self._windows:
            at += 1
        return at + _WINDOW

    def _start(self, data: bytes, start: int, stop: int) -> int:
        at = stop - _WINDOW
        while at > start and data[at - 1 : at - 1 + _WINDOW] in self._windows:
            at -= 1
        return at
