"""Processes that speak in lines: started with three pipes each, heard and fed in one loop, without a thread."""

from __future__ import annotations

import os
import resource
import selectors
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NamedTuple

from disttest.extras.cluster.limits import PIPE_DRAIN_S
from disttest.host.lines import Lines
from disttest.host.process import PipedChild, end_all, start_piped

LONGEST_LINE = 64 * 1024
"""A line without an end is cut here; agents write far shorter ones."""
_CHUNK = 1 << 16
DESCRIPTORS = 4
"""Of ours, for each process on its own: three pipes and the selector."""
_OTHER_DESCRIPTORS = 64
"""Journals, logs, and the short calls of other commands."""


def room_for(processes: int) -> int:
    """How many of so many processes, each in pipes of its own, the limit on open files lets this one hold.

    The limit is raised for them as far as it may be, and no further: schedulers hand it on to what they start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return processes
    wanted = _OTHER_DESCRIPTORS + DESCRIPTORS * processes
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(processes, (soft - _OTHER_DESCRIPTORS) // DESCRIPTORS))


class Program(NamedTuple):
    """A program to start."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str | None = None


class OutputLine(NamedTuple):
    """What one process wrote."""

    process: int
    error: bool
    """Whether on its standard error."""
    text: bytes


class _Pipe:
    """One output of one process, cut into lines."""

    def __init__(self, process: int, file: IO[bytes], *, error: bool) -> None:
        self.file = file
        self._process = process
        self._error = error
        self._lines = Lines(LONGEST_LINE)

    def read(self) -> tuple[list[OutputLine], bool]:
        """The lines that are complete, and whether it is at its end."""
        try:
            chunk = os.read(self.file.fileno(), _CHUNK)
        except BlockingIOError:
            return [], False
        whole = self._lines.feed(chunk or b"\n" * bool(self._lines.rest))
        return [OutputLine(self._process, self._error, text) for text in whole], not chunk


class PipedProcesses:
    """A number of processes that get the same input."""

    def __init__(self, commands: Sequence[Program] = ()) -> None:
        self._selector = selectors.DefaultSelector()
        self._processes: list[PipedChild] = []
        self._outboxes: list[bytearray] = []
        self._closed = False
        try:
            for command in commands:
                self.start(command)
        except BaseException:
            self.kill()
            raise

    def start(self, command: Program) -> int:
        """Start one more; returns its number."""
        # Its own session: Ctrl-C is for the client, which tells the agents in its own way.
        process = start_piped(command.argv, environ=command.environment, directory=command.directory)
        number = len(self._processes)
        self._processes.append(process)
        self._outboxes.append(bytearray())
        assert process.stdout is not None
        assert process.stderr is not None
        for file, error in ((process.stdout, False), (process.stderr, True)):
            self._selector.register(file, selectors.EVENT_READ, _Pipe(number, file, error=error))
        return number

    @property
    def pids(self) -> list[int]:
        """Of the processes, in order."""
        return [process.pid for process in self._processes]

    def send(self, data: bytes) -> None:
        """Queue input for all; it is written while :meth:`lines` waits."""
        for number in range(len(self._processes)):
            self.send_to(number, data)

    def send_to(self, number: int, data: bytes) -> None:
        """Queue input for one."""
        self._outboxes[number] += data
        self._flush(number)

    def lines(self, tick_s: float) -> Iterator[OutputLine | None]:
        """Yield what they write, None every ``tick_s``; ends when all of them have, and their pipes are empty."""
        ended_s: float | None = None
        while self._open_outputs():
            if self.all_ended():
                ended_s = ended_s or time.monotonic()
                if time.monotonic() - ended_s > PIPE_DRAIN_S:
                    break
            yield from self.round(tick_s)
        for process in self._processes:
            while process.wait(tick_s) is None:
                yield None
        self._close()

    def round(self, tick_s: float) -> Iterator[OutputLine | None]:
        """Yield what they write now; None if none does within ``tick_s``."""
        ready = self._selector.select(tick_s)
        if not ready:
            yield None
        for key, _ in ready:
            yield from self._on_ready(key)

    def all_ended(self) -> bool:
        """Whether none of them lives; what they wrote last may still be in the pipes."""
        return all(process.poll() is not None for process in self._processes)

    def codes(self) -> list[int | None]:
        """Exit codes in the convention of ``subprocess``; None for one that lives."""
        return [ended.returncode if (ended := process.poll()) else None for process in self._processes]

    def signal(self, signum: int) -> None:
        """Signal those that live."""
        for process in self._processes:
            process.signal(signum)

    def kill(self) -> None:
        """End them at once."""
        if not self._closed:
            end_all(self._processes)
        self._close()

    def _open_outputs(self) -> bool:
        return any(isinstance(key.data, _Pipe) for key in self._selector.get_map().values())

    def _on_ready(self, key: selectors.SelectorKey) -> Iterator[OutputLine]:
        if isinstance(key.data, int):
            self._flush(key.data)
            return
        lines, at_end = key.data.read()
        yield from lines
        if at_end:
            self._selector.unregister(key.fileobj)

    def _flush(self, number: int) -> None:
        """Write what the pipe takes; what it does not take waits until it does."""
        stdin, outbox = self._processes[number].stdin, self._outboxes[number]
        if stdin is None or stdin.closed:
            return
        try:
            while outbox:
                del outbox[: os.write(stdin.fileno(), outbox[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:  # it has ended; that is an event of its own
            outbox.clear()
        self._watch_input(stdin, number, wanted=bool(outbox))

    def _watch_input(self, stdin: IO[bytes], number: int, *, wanted: bool) -> None:
        watched = stdin.fileno() in self._selector.get_map()
        if wanted and not watched:
            self._selector.register(stdin, selectors.EVENT_WRITE, number)
        elif watched and not wanted:
            self._selector.unregister(stdin)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._selector.close()
        for process in self._processes:
            process.close()
