"""The journal: append-only, one JSON event a line, readable after any crash.

Only one process writes at a time: the controller while it lives, the command after that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from disttest.errors import UsageError
from disttest.results.events import AnyEvent, Event, Noted

FILE_NAME = "events.jsonl"

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

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_events(path: Path) -> Iterator[AnyEvent]:
    """Yield the events of a journal; what can not be read becomes a ``Noted`` event, never an exception.

    Raises:
        UsageError: there is no such file.
    """
    at_s = 0.0
    for number, event in read_lines(path):
        if isinstance(event, Event):
            at_s = event.at_s
            yield event
        else:
            yield Noted(at_s=at_s, message=f"{path.name}:{number}: skipped, {event}")


def read_lines(path: Path) -> Iterator[tuple[int, AnyEvent | str]]:
    """Yield ``(line number, event)``, or the line number and why that line is not an event.

    Raises:
        UsageError: there is no such file.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"no journal at {path}: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                yield number, f"not an event: {error}"
