"""The journal: append-only, one JSON event a line, readable after any crash.

Only one process writes at a time: the controller while it lives, the command after that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from disttest.errors import JournalError, UsageError
from disttest.masking import masker
from disttest.results.events import AnyEvent, Event, Noted

FILE_NAME = "events.jsonl"
_NAMES = ("nodeid", "slug", "log")
"""Fields by which events and files belong together."""

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
        self.unwritten: list[Event] = []
        """Events for which there was no room on the disk."""
        self._names: dict[str, str] = {}
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, event: Event) -> None:
        """Write one event as one line, in one system call; values that are to be hidden are.

        Raises:
            JournalError: it can not be written. Only the first such event says so: the run is to end then, and what
                else happens meanwhile is kept in :attr:`unwritten`.
        """
        if self.unwritten:
            self.unwritten.append(event)
            return
        try:
            _write_line(self._fd, self._encode(event) + b"\n")
        except OSError as error:
            self.unwritten.append(event)
            raise JournalError(
                f"{self.path.parent} can not be written any more: {error.strerror}. The run ends here, since results "
                "would be lost: make room, or choose another place with --results"
            ) from error

    def _encode(self, event: Event) -> bytes:
        """One event as JSON: without values that are to be hidden, and without what UTF-8 can not say."""
        if not masker.active:
            try:
                return _encoder.encode(event)
            except UnicodeEncodeError:  # a lone surrogate somewhere
                pass
        return _encoder.encode(self._clean(msgspec.to_builtins(event)))

    def _clean(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            text = value.encode("utf-8", "backslashreplace").decode("utf-8")
            # A name stays what it was at first: a value that is learned later must not tear events apart.
            return self._names.setdefault(text, masker.text(text)) if name in _NAMES else masker.text(text)
        if isinstance(value, dict):
            return {self._clean(key): self._clean(item, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(item) for item in value]
        return value

    def restore(self) -> bool:
        """Put the journal back where it was, if somebody has removed it meanwhile; whether that was so."""
        try:
            if self.path.stat().st_ino == os.fstat(self._fd).st_ino:
                return False
        except OSError:
            pass
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        os.close(self._fd)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._fd, 0)
        _write_line(self._fd, content)
        return True

    def events(self) -> Iterator[AnyEvent]:
        """Yield what has been appended so far, by whomever, and what could not be."""
        yield from read_events(self.path)
        yield from cast("list[AnyEvent]", self.unwritten)

    def end_line(self) -> None:
        """Give a line that its writer could not finish an end, so that it does not swallow the next event."""
        with contextlib.suppress(OSError):  # no room on the disk: then nothing follows either
            os.write(self._fd, b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _write_line(fd: int, line: bytes) -> None:
    before = os.fstat(fd).st_size
    written = os.write(fd, line)
    if written < len(line):
        # Half a line would take the next one along.
        os.ftruncate(fd, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
