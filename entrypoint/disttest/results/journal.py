"""The journal: append-only, one JSON event per line, readable after any crash.

Only one process writes at a time: the controller while it lives, the command afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from disttest.descriptors import move_high
from disttest.errors import JournalError, UsageError
from disttest.host.copies import is_copy
from disttest.host.lines import LONGEST_LINE, Lines
from disttest.model import UNREADABLE, TestResult, WorldShape
from disttest.outgoing import outgoing, shorten_all
from disttest.plugin_manager import plugin_manager
from disttest.results.events import (
    AnyEvent,
    Event,
    Noted,
    RunFinished,
    TestCollected,
    TestFinished,
    TestStarted,
    WorldEnded,
    WorldStarted,
)
from disttest.safe_open import open_regular

FILE_NAME = "events.jsonl"
# Fields that connect events and files.
_NAMES = ("nodeid", "slug", "log")

_BLOCK = 1 << 20
MOST_REPORTED = 100
"""Maximum number of unreadable lines that are reported one by one."""
# Bound at import: tests may monkeypatch it.
_fstat = os.fstat
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_encoder = msgspec.json.Encoder()


def run_clock(
    *,
    wall: Callable[[], float] = time.time,  # noqa: TID251  # read once, as the offset of the clock
    monotonic: Callable[[], float] = time.monotonic,
) -> Callable[[], float]:
    """Return a clock that starts at the wall-clock time and never jumps."""
    offset = wall() - monotonic()
    return lambda: offset + monotonic()


class Journal:
    """Appends events to a file; each is in the page cache before ``append`` returns.

    Args:
        path: the file; created if it does not exist.
        fd: open descriptor of the file, inherited from the process that created it.
        clock: replaces the clock in tests.
    """

    def __init__(
        self, path: Path, *, fd: int | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.path = path
        self.now = clock or run_clock()
        self.unwritten: list[Event] = []
        """Events that the full disk could not hold."""
        self._names: dict[str, str] = {}
        # A test that closes low descriptors and opens a file would get the events in that file.
        self._fd = move_high(os.open(path, _FLAGS, 0o644) if fd is None else fd)
        self._file = _fstat(self._fd)

    def fileno(self) -> int:
        """Descriptor for a process that will write into the same journal, whatever happens to its path."""
        return self._fd

    def append(self, event: Event) -> None:
        """Write one event as one line, masked, in one system call.

        A fork that a test has made writes nothing: its parent is the only writer.

        Raises:
            JournalError: the event cannot be written. Only the first such event raises, and the run must end
                then; later events are kept in :attr:`unwritten`.
        """
        if is_copy():
            return
        # Later events are kept, too, even if there is room again: a journal with a gap would be read as
        # complete.
        if self.unwritten:
            self.unwritten.append(event)
            return
        try:
            line = self._encode(event)
            if len(line) > LONGEST_LINE:  # readers skip such a line
                line = _encoder.encode(shorten_all(msgspec.json.decode(line)))
            # A test may have closed all descriptors, and opened another file under this number.
            if not os.path.samestat(_fstat(self._fd), self._file):
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            _write_line(self._fd, line + b"\n")
        except OSError as error:
            self.unwritten.append(event)
            raise JournalError(end_for_want_of_room(self.path.parent, error)) from error

    def _encode(self, event: Event) -> bytes:
        """Encode an event as JSON, masked and without lone surrogates."""
        # Also without any value to hide: a test may teach the first one.
        if isinstance(event, TestCollected):
            self._names.setdefault(event.test.nodeid, outgoing.text(event.test.nodeid))
        if not outgoing.active:
            try:
                return _encoder.encode(event)
            # The event contains a lone surrogate.
            except UnicodeEncodeError:
                pass
        return _encoder.encode(self._clean(msgspec.to_builtins(event)))

    def _clean(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            text = value.encode("utf-8", "backslashreplace").decode("utf-8")
            # A name keeps its first form: a secret that is learned later must not separate events of one test.
            return (
                self._names.setdefault(text, outgoing.text(text)) if name in _NAMES else outgoing.text(text)
            )
        if isinstance(value, dict):
            return {self._clean(key): self._clean(item, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(item) for item in value]
        return value

    def is_in_place(self) -> bool:
        """Whether the path still refers to this journal."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def move_to(self, path: Path) -> None:
        """Copy the journal to a new file, and continue there.

        Raises:
            OSError: the file cannot be written, or exists and so belongs to another run.
        """
        fd = move_high(os.open(path, _FLAGS | os.O_EXCL, 0o644))
        try:
            # pread moves no position, which processes with a copy of the descriptor share.
            _write_line(fd, os.pread(self._fd, os.fstat(self._fd).st_size, 0))
        except OSError:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self.path, self._file = fd, path, _fstat(fd)

    def events(self) -> Iterator[AnyEvent]:
        """Yield all events so far, of any writer, including unwritten ones; works even if the path is gone."""
        yield from self.follow().close()
        yield from cast("list[AnyEvent]", self.unwritten)

    def follow(self) -> JournalFollower:
        """Return a reader for this journal that works even if the path is gone, and moves no position of the writer."""
        # Opened again, not duplicated: a duplicate would share the position with the writer.
        return JournalFollower(self.path, open(f"/proc/self/fd/{self._fd}", "rb"))  # noqa: PTH123

    def end_line(self) -> None:
        """Terminate an unfinished line of a dead writer, so that it does not swallow the next event."""
        # On a full disk nothing follows either.
        with contextlib.suppress(OSError):
            os.write(self._fd, b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def end_for_want_of_room(folder: Path, error: OSError) -> str:
    """The message of a run that ends because its results cannot be written into a folder."""
    return (
        f"{folder} cannot be written any more: {error.strerror}. The run ends here, because results would be lost: free "
        "space, or choose another place with --results"
    )


def record_end(path: Path, *, at_s: float, exit_code: int, reasons: Sequence[str]) -> None:
    """Append the end of the command to a journal if it differs from that of the run, as after a missed floor."""
    event = RunFinished(at_s=at_s, exit_code=exit_code, reason="; ".join(reasons))
    with contextlib.suppress(OSError, JournalError), contextlib.closing(Journal(path)) as journal:
        journal.append(event)


def _write_line(fd: int, line: bytes) -> None:
    before = os.fstat(fd).st_size
    # O_APPEND and a single write keep a line in one piece, even with several writers.
    written = os.write(fd, line)
    # On a full disk, write() first writes a part without an error; only the next call raises ENOSPC.
    if written < len(line):
        # Half a line would corrupt the next one.
        # Safe, because only one process writes at a time.
        os.ftruncate(fd, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class JournalFollower:
    """Reads a journal, even while another process writes it.

    Args:
        path: the file.
        file: the same file, if it is open already.

    Raises:
        UsageError: the file does not exist.
    """

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        self._name = path.name
        self._file = _opened(path) if file is None else file
        self._lines = Lines(LONGEST_LINE)
        self._number = self._unreadable = 0
        self._at_s = 0.0

    def new_events(self, *, last: bool = False) -> Iterator[AnyEvent]:
        """Yield the events written since the previous call; an unreadable line becomes a ``Noted`` event.

        Args:
            last: whether the writer has ended, so that a line without an end counts.
        """
        for number, read in self.new_lines(last=last):
            if isinstance(read, str):
                self._unreadable += 1
                if self._unreadable > MOST_REPORTED:
                    continue
                # The line has no time that can be read; the time of the event before it keeps the order.
                read = Noted(at_s=self._at_s, message=f"{self._name}:{number}: skipped, {read}")
            self._at_s = read.at_s
            yield read

    def new_lines(self, *, last: bool = False) -> Iterator[tuple[int, AnyEvent | str]]:
        """Yield ``(line number, event)``, or the line number and the reason why the line is not an event."""
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
        """Finish: yield the remaining events, including a last line that is cut, and close the file."""
        with self._file:
            yield from self.new_events(last=True)
        if (more := self._unreadable - MOST_REPORTED) > 0:
            yield Noted(at_s=self._at_s, message=f"{self._name}: {more} more lines skipped, not events")

    def let_go(self) -> None:
        """Close the file without reading the rest."""
        self._file.close()

    @property
    def cut_short(self) -> bool:
        """Whether the last line is cut because its writer died; valid after all events are read."""
        return bool(self._lines.rest)


def read_events(path: Path) -> Iterator[AnyEvent]:
    """Yield the events of a journal; an unreadable line becomes a ``Noted`` event, never an exception.

    Raises:
        UsageError: the file does not exist.
    """
    yield from JournalFollower(path).close()


def read_lines(path: Path) -> Iterator[tuple[int, AnyEvent | str]]:
    """Yield ``(line number, event)``, or the line number and the reason why the line is not an event.

    Raises:
        UsageError: the file does not exist.
    """
    with _opened(path) as file:
        yield from JournalFollower(path, file).new_lines(last=True)


def _opened(path: Path) -> BinaryIO:
    # Another process may have replaced the file by a link or a pipe.
    try:
        return os.fdopen(open_regular(path), "rb")
    except OSError as error:
        raise UsageError(
            f"no journal at {path}: {error.strerror}; give the directory with the results of a run"
        ) from error


def _decoded(line: bytes) -> AnyEvent | str:
    if len(line) > LONGEST_LINE:
        # Such a line was not written by disttest; decoding it could exhaust the memory.
        return f"not an event: longer than {LONGEST_LINE >> 20} MiB"
    try:
        return _decoder.decode(line)
    except UNREADABLE as error:
        return f"not an event: {error}"


class EventWriter:
    """One method for each kind of event."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.now = journal.now

    def event(self, event: Event) -> None:
        """Append an event."""
        self.journal.append(event)

    def world_started(self, world_id: str, shape: WorldShape, slots: Sequence[str], pid: int = 0) -> None:
        """Record a world, with the names of its slots and its process id if it runs here."""
        self.event(WorldStarted(at_s=self.now(), world_id=world_id, shape=shape, slots=tuple(slots), pid=pid))

    def world_ended(self, world_id: str, reason: str = "") -> None:
        """Record that a world has released its slots."""
        self.event(WorldEnded(at_s=self.now(), world_id=world_id, reason=reason))

    def test_started(self, nodeid: str, *, attempt: int = 1, world_id: str = "") -> None:
        """Record the start of an attempt."""
        self.event(TestStarted(at_s=self.now(), nodeid=nodeid, attempt=attempt, world_id=world_id))

    def test_finished(self, result: TestResult, *, again: bool = False) -> None:
        """Record the result of an attempt; ``again`` says that another one follows."""
        if result.outcome.is_bad and not result.message_id:
            known = plugin_manager().call("disttest_message_id", message=result.message)
            result = msgspec.structs.replace(result, message_id=known or "")
        self.event(TestFinished(at_s=self.now(), result=result, again=again))

    def noted(self, message: str, nodeid: str = "", *, shown: bool = False) -> None:
        """Record a note for the reader; ``shown`` says that pytest's terminal has it."""
        self.event(Noted(at_s=self.now(), message=message, nodeid=nodeid, shown=shown))
