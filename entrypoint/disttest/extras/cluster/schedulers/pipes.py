"""Processes with three pipes each, read and written in one loop, without threads."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NamedTuple

from disttest.clock import monotonic
from disttest.extras.cluster.limits import PIPE_DRAIN_S
from disttest.host.event_loop import wait_any
from disttest.host.lines import Lines
from disttest.host.process import PipedChild, end_all, start_piped

LONGEST_LINE = 64 * 1024
"""Longest line; a longer one is cut. Agents write far shorter ones."""
_CHUNK = 1 << 16
DESCRIPTORS = 4
"""Descriptors for each process: three pipes and its pidfd."""
_OTHER_DESCRIPTORS = 64
"""Descriptors for journals, logs, and short calls of other commands."""


def room_for(processes: int) -> int:
    """Return how many of these processes fit the limit on open files, each with its own pipes.

    The limit is raised as far as necessary and permitted, and no further: schedulers pass it on to their jobs.
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
    """A line of one process."""

    process: int
    error: bool
    """Whether it came from standard error."""
    text: bytes


class _Pipe:
    """One output of one process, split into lines."""

    def __init__(self, process: int, file: IO[bytes], *, error: bool) -> None:
        self.ended = False
        self._file = file
        self._process = process
        self._error = error
        self._lines = Lines(LONGEST_LINE)

    def fileno(self) -> int:
        """Return the descriptor of the pipe."""
        return self._file.fileno()

    def read(self) -> list[OutputLine]:
        """Return the lines that are now complete."""
        try:
            chunk = os.read(self.fileno(), _CHUNK)
        except BlockingIOError:
            return []
        self.ended = not chunk
        # A last line may lack its newline.
        whole = self._lines.feed(chunk or b"\n" * bool(self._lines.rest))
        return [OutputLine(self._process, self._error, text) for text in whole]


class PipedProcesses:
    """Processes that get the same input."""

    def __init__(self, commands: Sequence[Program] = ()) -> None:
        self._processes: list[PipedChild] = []
        self._outboxes: list[bytearray] = []
        self._outputs: list[_Pipe] = []
        self._closed = False
        try:
            for command in commands:
                self.start(command)
        except BaseException:
            # Agents of other nodes have started, and would wait for their job.
            self.kill()
            raise

    def start(self, command: Program) -> int:
        """Start another process; return its number."""
        # A session of its own: Ctrl-C is for the client, which cancels the agents by a message.
        process = start_piped(command.argv, environ=command.environment, directory=command.directory)
        number = len(self._processes)
        self._processes.append(process)
        self._outboxes.append(bytearray())
        assert process.stdout is not None
        assert process.stderr is not None
        self._outputs += [
            _Pipe(number, process.stdout, error=False),
            _Pipe(number, process.stderr, error=True),
        ]
        return number

    @property
    def pids(self) -> list[int]:
        """Pids of the processes, in order."""
        return [process.pid for process in self._processes]

    def send(self, data: bytes) -> None:
        """Queue input for all processes; it is written while :meth:`lines` waits."""
        for number in range(len(self._processes)):
            self.send_to(number, data)

    def send_to(self, number: int, data: bytes) -> None:
        """Queue input for one process."""
        self._outboxes[number] += data
        self._flush(number)

    def lines(self, tick_s: float) -> Iterator[OutputLine | None]:
        """Yield lines, and None after ``tick_s`` without one, until all processes and pipes have ended."""
        ended_s: float | None = None
        while self._outputs:
            if self.all_ended():
                ended_s = ended_s or monotonic()
                if monotonic() - ended_s > PIPE_DRAIN_S:
                    break
            yield from self.round(tick_s)
        for process in self._processes:
            # A process may close its pipes long before its end. Callers keep their limits meanwhile.
            while process.wait(tick_s) is None:
                yield None
        self._close()

    def round(self, tick_s: float) -> Iterator[OutputLine | None]:
        """Yield the available lines; None if there is none within ``tick_s``."""
        waiting = [number for number, outbox in enumerate(self._outboxes) if outbox]
        inputs = [self._processes[number].stdin for number in waiting]
        ready = wait_any(*self._outputs, writable=filter(None, inputs), timeout_s=tick_s)
        if not ready:
            yield None
        for number in waiting:
            self._flush(number)
        for pipe in self._outputs:
            if pipe in ready:
                yield from pipe.read()
        self._outputs = [pipe for pipe in self._outputs if not pipe.ended]

    def all_ended(self) -> bool:
        """Whether all processes have ended; their last lines may still be in the pipes."""
        return all(process.poll() is not None for process in self._processes)

    def codes(self) -> list[int | None]:
        """Return exit codes as ``subprocess`` does; None for a running process."""
        return [ended.returncode if (ended := process.poll()) else None for process in self._processes]

    def signal(self, signum: int) -> None:
        """Send a signal to the running processes."""
        for process in self._processes:
            process.signal(signum)

    def kill(self) -> None:
        """Kill all processes."""
        if not self._closed:
            end_all(self._processes)
        self._close()

    def _flush(self, number: int) -> None:
        """Write what the pipe accepts; the rest waits until it accepts more."""
        stdin, outbox = self._processes[number].stdin, self._outboxes[number]
        if stdin is None or stdin.closed:
            return
        try:
            while outbox:
                del outbox[: os.write(stdin.fileno(), outbox[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:  # the process has ended, which is a separate event
            outbox.clear()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for process in self._processes:
            process.close()
