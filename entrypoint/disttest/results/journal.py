"""The journal: append-only, one JSON event a line, readable after any crash.

Only one process writes at a time: the controller while it lives, the command after that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from disttest.cut_texts import shorten_all
from disttest.errors import JournalError, UsageError
from disttest.host.copies import is_copy
from disttest.host.lines import LONGEST_LINE, Lines
from disttest.model import UNREADABLE
from disttest.outgoing import outgoing
from disttest.plugin_manager import plugin_manager
from disttest.results.events import AnyEvent, Event, Noted, RunFinished
from disttest.safe_open import open_regular

FILE_NAME = "events.jsonl"
# Fields by which events and files belong together.
_NAMES = ("nodeid", "slug", "log")

_BLOCK = 1 << 20
MOST_TOLD = 100
"""Lines that cannot be read are told one by one, up to so many."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC

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
    """Appends events to a file; each is on disk (in the page cache) before ``append`` returns.

    Args:
        path: the file; made if it is not there.
        fd: the file, open already (inherited from the process that has made it).
        clock: for tests.
    """

    def __init__(
        self, path: Path, *, fd: int | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.path = path
        self.now = clock or run_clock()
        self.unwritten: list[Event] = []
        """Events for which there was no room on the disk."""
        self._names: dict[str, str] = {}
        self._fd = os.open(path, _FLAGS, 0o644) if fd is None else fd

    def fileno(self) -> int:
        """For a process that is to write into the same journal, whatever becomes of its path."""
        return self._fd

    def append(self, event: Event) -> None:
        """Write one event as one line, in one system call; values that are to be hidden are.

        A fork that a test has made writes nothing: its parent is the one writer.

        Raises:
            JournalError: it cannot be written. Only the first such event says so: the run is to end then, and what
                else happens meanwhile is kept in :attr:`unwritten`.
        """
        if is_copy():
            return
        if self.unwritten:
            self.unwritten.append(event)
            return
        try:
            line = self._encode(event)
            if len(line) > LONGEST_LINE:  # readers skip such a line
                line = _encoder.encode(shorten_all(msgspec.json.decode(line)))
            _write_line(self._fd, line + b"\n")
        except OSError as error:
            self.unwritten.append(event)
            raise JournalError(end_for_want_of_room(self.path.parent, error)) from error

    def _encode(self, event: Event) -> bytes:
        """One event as JSON: without values that are to be hidden, and without what UTF-8 cannot say."""
        if not outgoing.active:
            try:
                return _encoder.encode(event)
            except UnicodeEncodeError:  # a lone surrogate somewhere
                pass
        return _encoder.encode(self._clean(msgspec.to_builtins(event)))

    def _clean(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            text = value.encode("utf-8", "backslashreplace").decode("utf-8")
            # A name stays what it was at first: a value that is learned later must not tear events apart.
            return (
                self._names.setdefault(text, outgoing.text(text)) if name in _NAMES else outgoing.text(text)
            )
        if isinstance(value, dict):
            return {self._clean(key): self._clean(item, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(item) for item in value]
        return value

    def is_in_place(self) -> bool:
        """Whether the path still leads to this journal."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def move_to(self, path: Path) -> None:
        """Write all that it has into a new file, and go on there.

        Raises:
            OSError: it cannot be written, or there is such a file: that would be somebody else's.
        """
        fd = os.open(path, _FLAGS | os.O_EXCL, 0o644)
        try:
            _write_line(fd, os.pread(self._fd, os.fstat(self._fd).st_size, 0))
        except OSError:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self.path = fd, path

    def events(self) -> Iterator[AnyEvent]:
        """Yield what has been appended so far, by whomever, and what could not be; also if the path is gone."""
        yield from self.follow().close()
        yield from cast("list[AnyEvent]", self.unwritten)

    def follow(self) -> JournalFollower:
        """A reader of what is and will be written; also if the path is gone. It moves no position that the writer needs."""
        return JournalFollower(self.path, open(f"/proc/self/fd/{self._fd}", "rb"))  # noqa: PTH123

    def end_line(self) -> None:
        """Give a line that its writer could not finish an end, so that it does not swallow the next event."""
        with contextlib.suppress(OSError):  # no room on the disk: then nothing follows either
            os.write(self._fd, b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def end_for_want_of_room(folder: Path, error: OSError) -> str:
    """The message of a run that ends because its results cannot be written into a folder."""
    return (
        f"{folder} cannot be written any more: {error.strerror}. The run ends here, since results would be lost: make "
        "room, or choose another place with --results"
    )


def record_end(path: Path, *, at_s: float, exit_code: int, reasons: Sequence[str]) -> None:
    """Append the last word of the command to a journal, where it differs from that of the run: a floor was not kept."""
    event = RunFinished(at_s=at_s, exit_code=exit_code, reason="; ".join(reasons))
    with contextlib.suppress(OSError, JournalError), contextlib.closing(Journal(path)) as journal:
        journal.append(event)


def _write_line(fd: int, line: bytes) -> None:
    before = os.fstat(fd).st_size
    written = os.write(fd, line)
    if written < len(line):
        # Half a line would take the next one along.
        os.ftruncate(fd, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class JournalFollower:
    """Reads a journal, also while somebody else writes it.

    Args:
        path: the file.
        file: the same, open already.

    Raises:
        UsageError: there is no such file.
    """

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        self._name = path.name
        self._file = _opened(path) if file is None else file
        self._lines = Lines(LONGEST_LINE)
        self._number = self._unreadable = 0
        self._at_s = 0.0

    def new_events(self, *, last: bool = False) -> Iterator[AnyEvent]:
        """Yield what has been written since the last call; what cannot be read becomes a ``Noted`` event.

        Args:
            last: nobody writes any more, so a line without an end counts.
        """
        for number, read in self.new_lines(last=last):
            if isinstance(read, str):
                self._unreadable += 1
                if self._unreadable > MOST_TOLD:
                    continue
                read = Noted(at_s=self._at_s, message=f"{self._name}:{number}: skipped, {read}")
            self._at_s = read.at_s
            yield read

    def new_lines(self, *, last: bool = False) -> Iterator[tuple[int, AnyEvent | str]]:
        """The same as ``(line number, event)``, or the line number and why that line is not an event."""
        for line in self._whole_lines(last=last):
            self._number += 1
            if line.strip():
                yield self._number, _decoded(line)

    def _whole_lines(self, *, last: bool) -> Iterator[bytes]:
        while block := self._file.read(_BLOCK):
            yield from self._lines.feed(block)
        if last:
            yield bytes(self._lines.rest)

    def close(self) -> Iterator[AnyEvent]:
        """Nobody writes any more: yield what is left, the last line too if it was cut, and close the file."""
        with self._file:
            yield from self.new_events(last=True)
        if (more := self._unreadable - MOST_TOLD) > 0:
            yield Noted(at_s=self._at_s, message=f"{self._name}: {more} more lines skipped, not events")

    def let_go(self) -> None:
        """Close the file; what has not been read is of no interest."""
        self._file.close()

    @property
    def cut_short(self) -> bool:
        """Whether the last line has no end: its writer died over it, once all is read."""
        return bool(self._lines.rest)


def read_events(path: Path) -> Iterator[AnyEvent]:
    """Yield the events of a journal; what cannot be read becomes a ``Noted`` event, never an exception.

    Raises:
        UsageError: there is no such file.
    """
    yield from JournalFollower(path).close()


def read_lines(path: Path) -> Iterator[tuple[int, AnyEvent | str]]:
    """Yield ``(line number, event)``, or the line number and why that line is not an event.

    Raises:
        UsageError: there is no such file.
    """
    with _opened(path) as file:
        yield from JournalFollower(path, file).new_lines(last=True)


def _opened(path: Path) -> BinaryIO:
    # Whoever wrote the results may have put a link or a pipe in its place.
    try:
        return os.fdopen(open_regular(path), "rb")
    except OSError as error:
        raise UsageError(
            f"no journal at {path}: {error.strerror}; give the directory with the results of a run"
        ) from error


def _decoded(line: bytes) -> AnyEvent | str:
    if len(line) > LONGEST_LINE:
        return f"not an event: longer than {LONGEST_LINE >> 20} MiB"
    try:
        return _decoder.decode(_in_present_form(line))
    except UNREADABLE as error:
        return f"not an event: {error}"


def _in_present_form(line: bytes) -> bytes:
    """The line of an event, with fields of earlier versions in their present form."""
    changes = [change for name, change in _old_fields() if name in line]
    if not changes:
        return line
    event = msgspec.json.decode(line)
    if isinstance(event, dict):
        for change in changes:
            change(event)
    return msgspec.json.encode(event)


@cache
def _old_fields() -> tuple[tuple[bytes, Callable[[dict[str, Any]], None]], ...]:
    found = plugin_manager().call("disttest_old_fields")
    return tuple((f'"{name}":'.encode(), change) for each in found for name, change in each.items())
