"""Bounded work: a module of ours, run in a child process of its own that can not outlive its deadline.

A driver can hang a process for minutes, crash it, or make it unkillable. So whatever touches a device on
behalf of the command happens in such a child: it speaks JSON lines on a pipe, any silence longer than
``stall_s`` ends it, and a child that survives SIGKILL (stuck in the kernel) is given up, not waited for.

The child side of it is :func:`speak` and :func:`run_as_child`.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO

import msgspec

import disttest
from disttest.model import Frozen

Clock = Callable[[], float]

_PACKAGE_ROOT = Path(disttest.__file__).parent.parent

# -P keeps the current directory off the path: a file random.py in a user's checkout must not be imported.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from disttest.host.bounded import run_as_child; run_as_child()"
)

_PR_SET_PDEATHSIG = 1
_STDERR_TAIL = 8192
_MAX_BUFFER = 64 << 20
"""More than this without a line end is not one of our children speaking."""
_DEATH_GRACE_S = 3.0
"""How long a killed child may take to disappear before it is given up as stuck in the kernel."""

_LONGEST_WAIT_S = 3600.0
"""What poll(2) takes as a bound where nothing else bounds the wait."""


class End(StrEnum):
    """How a bounded child ended."""

    DONE = "done"
    """It left by itself with exit code 0."""
    FAILED = "failed"
    """It left by itself with another exit code."""
    SIGNALLED = "signalled"
    """A signal that we did not send ended it."""
    STALLED = "stalled"
    """It fell silent, or its time was up; we killed it."""


class Ended(Frozen):
    """What came of a bounded child."""

    end: End
    code: int | None = None
    signal: int | None = None
    elapsed_s: float = 0.0
    stuck: bool = False
    """It did not die of SIGKILL in time: the kernel holds it, and perhaps its device."""
    errors: str = ""
    """The end of what it wrote to stderr."""

    def __str__(self) -> str:
        match self.end:
            case End.DONE:
                return "ended"
            case End.FAILED:
                last = self.errors.splitlines()[-1:] or [""]
                return f"left with exit code {self.code}: {last[0]}".removesuffix(": ")
            case End.SIGNALLED:
                return f"was ended by {signal_name(self.signal or 0)}"
            case _:
                stuck = ", and it did not die of SIGKILL" if self.stuck else ""
                return f"gave no answer within {self.elapsed_s:.0f} s{stuck}"


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class BoundedChild:
    """A living bounded child. Call :meth:`advance` when a descriptor of it is ready, or its time is up."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        timeout_s: float,
        stall_s: float | None = None,
        on_line: Callable[[bytes], None] = lambda _: None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Start ``module`` (it has a function ``main(arguments)``).

        Args:
            module: name of a module of disttest.
            arguments: what its ``main`` gets.
            timeout_s: bound on the whole.
            stall_s: bound on silence; the same as ``timeout_s`` unless given.
            on_line: called with each line that the child speaks.
            clock: a monotonic clock.
        """
        self._on_line = on_line
        self._clock = clock
        self._started_s = self._heard_s = clock()
        self._deadline_s = self._started_s + timeout_s
        self._stall_s = stall_s or math.inf
        self._buffer = b""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _finish
        self._process = _start(module, arguments, self._errors)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._pidfd = os.pidfd_open(self._process.pid)
        self.ended: Ended | None = None

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its session."""
        return self._process.pid

    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when it speaks or ends."""
        return () if self.ended else (self._pipe, self._pidfd)

    def seconds_left(self) -> float:
        """Until it is ended for its silence, if it stays silent."""
        return max(0.0, min(self._deadline_s, self._heard_s + self._stall_s) - self._clock())

    def send(self, message: object, *, stall_s: float) -> None:
        """Give it work, and from now on that long for each answer. A child that has ended misses it."""
        self.expect(stall_s)
        try:
            os.write(self._process.stdin.fileno(), msgspec.json.encode(message) + b"\n")  # type: ignore[union-attr]
        except (BrokenPipeError, ValueError):
            return

    def expect(self, stall_s: float = math.inf) -> None:
        """Allow that much silence from now on; without a figure, any."""
        self._stall_s = stall_s
        self._heard_s = self._clock()

    def dismiss(self) -> None:
        """Tell it that there is no more work: a child that reads to the end of its input leaves."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def advance(self) -> Ended | None:
        """Take what it said, end it if its time is up; how it ended, or None while it lives."""
        if self.ended is None:
            self._read()
            if _exited(self._pidfd):
                self._read()
                self._finish(overdue=False)
            elif self.seconds_left() == 0.0:
                self.kill()
        return self.ended

    def kill(self) -> None:
        """End it and all that it started, now."""
        if self.ended is None:
            _kill_session(self._process)
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            poller.poll(_DEATH_GRACE_S * 1000)
            self._read()
            self._finish(overdue=True)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self._heard_s = self._clock()
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._on_line(line)
            if len(self._buffer) > _MAX_BUFFER:
                self._buffer = b""

    def _finish(self, *, overdue: bool) -> None:
        stuck = not _exited(self._pidfd)
        code = None if stuck else self._process.wait()
        # What it started may still hold our pipe, and more: the whole session goes.
        _kill_session(self._process)
        self.ended = Ended(
            end=End.STALLED if overdue else _end(code or 0),
            code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            elapsed_s=self._clock() - self._started_s,
            stuck=stuck,
            errors=_tail(self._errors),
        )
        os.close(self._pidfd)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


def _start(module: str, arguments: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-c", _BOOTSTRAP, str(_PACKAGE_ROOT)),
            *(str(os.getpid()), module, *arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
    )


def _end(code: int) -> End:
    if code < 0:
        return End.SIGNALLED
    return End.DONE if code == 0 else End.FAILED


def _exited(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    # The group's id can not be another's: the group lives on as long as one of its members does, and
    # while the leader is not waited for, its number is taken.
    try:
        os.killpg(process.pid, signal.SIGKILL)  # noqa: TID251 - our own child's session, on its deadline
    except (ProcessLookupError, PermissionError):
        return


def _tail(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _STDERR_TAIL))
    return errors.read().decode(errors="replace").strip()


def wait_children(
    children: Iterable[BoundedChild],
    *,
    until: Callable[[], bool] = lambda: False,
    timeout_s: float = math.inf,
    clock: Clock = time.monotonic,
) -> None:
    """Wait until all have ended, each within its own bounds; or until a condition holds; or that long."""
    deadline_s = clock() + timeout_s
    living = [child for child in children if child.advance() is None]
    while living and not until() and clock() < deadline_s:
        poller = select.poll()
        for child in living:
            for descriptor in child.descriptors():
                poller.register(descriptor, select.POLLIN)
        left_s = min(deadline_s - clock(), *(child.seconds_left() for child in living), _LONGEST_WAIT_S)
        poller.poll(max(0.0, left_s) * 1000 + 1)
        living = [child for child in living if child.advance() is None]


def run_bounded(
    module: str,
    arguments: Sequence[str] = (),
    *,
    timeout_s: float,
    stall_s: float | None = None,
    on_line: Callable[[bytes], None] = lambda _: None,
) -> Ended:
    """Run a module of ours in a bounded child, to its end."""
    child = BoundedChild(module, arguments, timeout_s=timeout_s, stall_s=stall_s, on_line=on_line)
    wait_children([child])
    assert child.ended is not None
    return child.ended


_speaker: int | None = None


def speak(message: object) -> None:
    """Say something to the parent, as one line of JSON; for use in a bounded child."""
    assert _speaker is not None, "only a bounded child speaks"
    line = msgspec.json.encode(message) + b"\n"
    while line:
        line = line[os.write(_speaker, line) :]


def run_as_child() -> None:
    """Become a bounded child: die with the parent, keep stdout for messages, run the module's ``main``."""
    global _speaker
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent, module, *arguments = sys.argv[1:]
    if os.getppid() != int(parent):
        raise SystemExit(1)
    # Whatever a C library prints goes to stderr; the pipe is for messages alone.
    _speaker = os.dup(1)
    os.dup2(2, 1)
    sys.argv = [module, *arguments]
    __import__(module)
    sys.modules[module].main(arguments)
