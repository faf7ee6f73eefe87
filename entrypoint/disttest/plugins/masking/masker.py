"""The filter that hides values: each becomes ``***`` wherever text leaves a process.

A process has one masker, as it has one set of log handlers. The processes of a run share the values that they learn (a test
prints ``::add-mask::VALUE``) through an anonymous file in memory, the ledger, which they inherit. So values appear on no
command line and on no disk.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from disttest.descriptors import memory_file, move_high
from disttest.outgoing import OutputFilter
from disttest.plugins.masking.common_words import is_common
from disttest.plugins.masking.encoded_lines import EncodedLines, encodings

SHORTEST = 4
"""Characters of the shortest value that is hidden: a shorter one would be found everywhere."""
MASK = "***"
_MASK = MASK.encode()
_MOST_HELD = 1 << 16
"""Bytes of a stream that are held back at most; a longer value could delay output forever."""
_LEARNED = re.compile(rb"^[ \t]*::add-mask::([^\r\n]+)", re.MULTILINE)
_COMMAND = b"::add-mask::"
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_SPECIAL = re.compile(r"""[\s!"$&'(),;<>?*\[\\\]^`{|}]""")
_SPECIAL_IN_QUOTES = re.compile(r'[$`"\\]')
# Bound at import: tests may monkeypatch them.
_fstat, _pread = os.fstat, os.pread
_GITHUB_ESCAPES = ((b"%0D", b"\r"), (b"%0A", b"\n"), (b"%25", b"%"))


class Masker(OutputFilter):
    """Hides values in all the forms in which they are likely to appear."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._forms: tuple[bytes, ...] = ()
        self._encoded_lines = EncodedLines()
        self._ledger = -1
        self._identity = (0, 0)
        self._read = 0

    # --- values

    @property
    def active(self) -> bool:
        """Whether there is any value to mask."""
        self._refresh()
        return bool(self._forms)

    def hide(self, values: Iterable[str]) -> tuple[str, ...]:
        """Mask values from now on, in every process of the run; return the lines that are too short or too common."""
        # Each line of a value is masked separately, too, because programs print values line by line.
        whole = [value for value in values if value.strip()]
        lines = [line.strip() for value in whole for line in value.splitlines()]
        # The mask itself would be masked again each time that a text passes.
        good = {value for value in (*whole, *lines) if value != MASK and _can_be_hidden(value)}
        fresh = sorted(good - self._values)
        if fresh:
            self._add(fresh)
            self._write(fresh)
        return tuple(line for line in lines if line and not _can_be_hidden(line))

    def learn(self, data: bytes) -> None:
        """Mask the values that a program asks GitHub to mask in this output."""
        # Each piece of output passes here, and nearly none has the command.
        if b"::add-mask::" in data:
            self.hide(_unescaped(match[1]).decode("utf-8", "replace") for match in _LEARNED.finditer(data))

    def _add(self, values: Iterable[str]) -> None:
        values = tuple(values)
        self._values.update(values)
        self._encoded_lines.add(value for value in values if len(value) >= 2 * SHORTEST)
        forms = {form for value in self._values for form in _forms(value) if len(form) >= SHORTEST}
        self._forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))

    # --- replacing

    def data(self, data: bytes, *, cut_start: bool = False, cut_end: bool = False) -> bytes:
        """Hide the values in bytes; with ``cut_…`` a part of a value at that border is hidden too."""
        if not self.active:
            return data
        spans = list(self._spans(data))
        if cut_start:
            spans.append((0, max(_cut_at_start(data, form) for form in self._forms)))
        if cut_end:
            spans.append((len(data) - self._unfinished(data), len(data)))
        merged = _merged(spans)
        return _replaced(data, merged) if merged else data

    def _spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        for form in self._forms:
            at = data.find(form)
            while at >= 0:
                yield at, at + len(form)
                # By one character: occurrences may overlap, as "abab" does twice in "ababab".
                at = data.find(form, at + 1)
        yield from self._encoded_lines.spans(data)

    def held_back(self, data: bytes) -> int:
        """Return the number of bytes at the end that may belong to a value; 0 if they are too many to hold."""
        begun = data.rpartition(b"\n")[2].lstrip(b" \t")
        asks = len(begun) if begun.startswith(_COMMAND) or _COMMAND.startswith(begun) else 0
        end = len(data) - (max(asks, self._unfinished(data)) if self.active else asks)
        for start, stop in reversed(_merged(list(self._spans(data)))):
            # A whole value reaches into the part that is held back. Without its end it would not be
            # recognised.
            if start < end < stop:
                end = start
        held = len(data) - end
        return held if held <= _MOST_HELD else 0

    def _unfinished(self, data: bytes) -> int:
        """Return the number of bytes at the end that may be the beginning of a value."""
        cut = max(_cut_at_end(data, form) for form in self._forms)
        return max(cut, self._encoded_lines.unfinished(data))

    # --- the ledger

    def share(self, fd: int | None = None) -> None:
        """Share the values with the processes that inherit the ledger; an inherited one is taken over."""
        if self._ledger_size() >= 0 and self._ledger >= 0:
            os.close(self._ledger)
        if fd is None:
            self._ledger = memory_file("disttest-masks")
        else:
            # A high number, since tests and the programs that they start close low ones.
            self._ledger = move_high(fd)
        # All processes of the run write to it. So each value lands at the end, and none overwrites another.
        fcntl.fcntl(self._ledger, fcntl.F_SETFL, os.O_APPEND)
        found = _fstat(self._ledger)
        self._identity = (found.st_dev, found.st_ino)
        self._read = 0
        self._write(sorted(self._values))
        self._refresh()

    @property
    def shared(self) -> int:
        """Descriptor of the ledger; -1 if there is none."""
        return self._ledger

    def _ledger_size(self) -> int:
        """Return the size of the ledger. A ledger that a test has closed or replaced is no longer used."""
        if self._ledger < 0:
            return 0
        try:
            found = _fstat(self._ledger)
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            self._ledger = -1
            return 0
        return found.st_size

    def _refresh(self) -> None:
        size = self._ledger_size()
        if size <= self._read:
            return
        # Not `read`: the processes share one position of the file.
        added = _pread(self._ledger, size - self._read, self._read)
        self._read = size
        self._add(filter(None, added.decode("utf-8", "surrogatepass").split("\0")))

    def _write(self, values: Iterable[str]) -> None:
        # A value may have several lines, but neither a variable nor an argument can contain a zero byte.
        text = "".join(f"{value}\0" for value in values)
        # A test may have closed the descriptor or opened another file in its place.
        self._ledger_size()
        if text and self._ledger >= 0:
            os.write(self._ledger, text.encode("utf-8", "surrogatepass"))


masker = Masker()
"""The masker of this process."""


def _can_be_hidden(value: str) -> bool:
    return len(value) >= SHORTEST and not is_common(value)


def _cut_at_end(data: bytes, form: bytes) -> int:
    """Return the number of bytes at the end of the data that begin a form without completing it."""
    longest = min(len(data), len(form) - 1)
    return next((length for length in range(longest, 0, -1) if data.endswith(form[:length])), 0)


def _cut_at_start(data: bytes, form: bytes) -> int:
    """Return the number of bytes at the beginning of the data that end a form without its beginning."""
    longest = min(len(data), len(form) - 1)
    return next((length for length in range(longest, 0, -1) if form.endswith(data[:length])), 0)


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort the spans and join those that overlap; values may overlap each other."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _replaced(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    parts, at = [], 0
    for start, stop in spans:
        parts += [data[at:start], _MASK]
        at = stop
    return b"".join([*parts, data[at:]])


def _unescaped(data: bytes) -> bytes:
    for escape, character in _GITHUB_ESCAPES:
        data = data.replace(escape, character)
    return data


def _forms(value: str) -> Iterator[bytes]:
    """Yield the value as it is and as programs quote it: JSON and Python (nested, too), shells, URLs, HTML, base64."""
    # A value of letters and digits alone has few forms. Each form costs a search.
    raw = value.encode("utf-8", "surrogatepass")
    shells = {value, *_in_shells(value)}
    literals = {repr(raw)[2:-1], *_literals(value)}
    inside = {form for text in literals for form in (json.dumps(text)[1:-1], *_plain_literals(text))}
    inside |= {json.dumps(text)[1:-1] for text in inside}
    markup = {form for text in (*shells, *literals) for form in _in_markup(text)}
    yield from (text.encode("utf-8", "surrogatepass") for text in shells | literals | inside | markup)
    for quoted in (quote(raw), quote_plus(raw), quote(raw, safe="")):
        yield quoted.encode()
        yield _PERCENT.sub(lambda match: match[0].lower(), quoted).encode()
    if len(raw) >= 2 * SHORTEST:
        yield from encodings(raw)


def _literals(text: str) -> Iterator[str]:
    """Yield the value as JSON, Python and pytest's ids write it between quotes."""
    yield json.dumps(text)[1:-1]
    yield from _plain_literals(text)
    # Python escapes single quotes in a string that contains both kinds of quotes.
    yield repr(f"{text}'\"")[1:-4]
    yield ascii(text)[1:-1]
    yield text.encode("unicode_escape").decode()


def _plain_literals(text: str) -> Iterator[str]:
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]


def _in_shells(text: str) -> Iterator[str]:
    """Yield the value as Python's shlex, ``set -x``, ``printf %q`` and ``declare -p`` write it."""
    yield text.replace("'", "'\"'\"'")
    yield text.replace("'", "'\\''")
    yield _SPECIAL.sub(r"\\\g<0>", text)
    yield _SPECIAL_IN_QUOTES.sub(r"\\\g<0>", text)


def _in_markup(text: str) -> Iterator[str]:
    plain = html.escape(text, quote=False)
    yield plain
    yield plain.replace('"', "&quot;")
    yield html.escape(text)
    yield plain.replace('"', "&#34;").replace("'", "&#39;")
