"""The journal: append-only, one JSON event a line, readable after any crash.

Only one process writes at a time: the controller while it lives, the command after that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from disttest.errors import UsageError
from disttest.results.events import AnyEvent, Event, Noted

FILE_NAME = "events.jsonl"

_BLOCK = 1 << 20

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_encoder = msgspec.json.Encoder()


def run_clock(
    *,
    wall: Callable[[], float] = time.time,  # noqa: TID251  # read once, as the offset of the clock
    monotonic: Callable[[], float] = time.monotonic,
) -> Callable[[], float]:
    """A clock that reads like the wall clock of its creation and then only goes forward."""
    offset = wall() - monotonic()
    return lambda: offset + monotonic()


class Journal:
    """Appends events to a file; each is on disk (in the page cache) before ``append`` returns."""

    def __init__(self, path: Path, *, clock: Callable[[], float] | None = None) -> None:
        self.path = path
        self.now = clock or run_clock()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, event: Event) -> None:
        """Write one event as one line, in one system call."""
        os.write(self._fd, _encoder.encode(event) + b"\n")

    def end_line(self) -> None:
        """Give a line that its writer could not finish an end, so that it does not swallow the next event."""
        os.write(self._fd, b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class JournalFollower:
    """Reads a journal while somebody else writes it.

    Raises:
        UsageError: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _opened(path)
        self._cut = b""
        """The beginning of a line that is not whole yet."""
        self._number = 0
        self._at_s = 0.0

    def new_events(self) -> Iterator[AnyEvent]:
        """Yield what has been written since the last call; what can not be read becomes a ``Noted`` event."""
        while block := self._file.read(_BLOCK):
            *lines, self._cut = (self._cut + block).split(b"\n")
            for line in lines:
                yield from self._event_in(line)

    def close(self) -> Iterator[AnyEvent]:
        """Nobody writes any more: yield what is left, the last line too if it was cut, and close the file."""
        yield from self.new_events()
        yield from self._event_in(self._cut)
        self._file.close()

    @property
    def cut_short(self) -> bool:
        """Whether the last line has no end: its writer died over it."""
        return bool(self._cut)

    def _event_in(self, line: bytes) -> Iterator[AnyEvent]:
        self._number += 1
        if line.strip():
            event = _noted(_decoded(line), self._path, self._number, self._at_s)
            self._at_s = event.at_s
            yield event


def read_events(path: Path) -> Iterator[AnyEvent]:
    """Yield the events of a journal; what can not be read becomes a ``Noted`` event, never an exception.

    Raises:
        UsageError: there is no such file.
    """
    at_s = 0.0
    for number, read in read_lines(path):
        event = _noted(read, path, number, at_s)
        at_s = event.at_s
        yield event


def read_lines(path: Path) -> Iterator[tuple[int, AnyEvent | str]]:
    """Yield ``(line number, event)``, or the line number and why that line is not an event.

    Raises:
        UsageError: there is no such file.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _decoded(line)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"no journal at {path}: {error.strerror}") from error


def _decoded(line: bytes) -> AnyEvent | str:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"not an event: {error}"


def _noted(read: AnyEvent | str, path: Path, number: int, at_s: float) -> AnyEvent:
    if isinstance(read, str):
        return Noted(at_s=at_s, message=f"{path.name}:{number}: skipped, {read}")
    return read
