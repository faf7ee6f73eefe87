"""Bounded work: a module of ours, run in a child process of its own that cannot outlive its deadline.

A driver can hang a process for minutes, crash it, or make it unkillable. So whatever touches a device on
behalf of the command happens in such a child: it speaks JSON lines on a pipe, any silence longer than
``stall_s`` ends it, and a child that survives SIGKILL (stuck in the kernel) is given up, not waited for.

The child side of it is :func:`speak` and :func:`run_as_child`.
"""

from __future__ import annotations

import importlib
import math
import os
import select
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO

import msgspec

import disttest
from disttest.clock import monotonic
from disttest.host.lines import Lines
from disttest.host.process import Exit, PipedChild, die_with_parent, fork_piped, signal_name, start_piped
from disttest.limits import BOUNDED_KILL_S
from disttest.model import Frozen

Clock = Callable[[], float]

_PACKAGE_ROOT = Path(disttest.__file__).parent.parent

# -P keeps the current directory off the path: a file random.py in a user's checkout must not be imported.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from disttest.host.bounded import run_as_child; run_as_child()"
)

_STDERR_TAIL = 8192

_LONGEST_WAIT_S = 3600.0
"""What poll(2) takes as a bound where nothing else bounds the wait."""


class ChildEnd(StrEnum):
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

    end: ChildEnd
    code: int | None = None
    signal: int | None = None
    elapsed_s: float = 0.0
    stuck: bool = False
    """It did not die of SIGKILL in time: the kernel holds it, and perhaps its device."""
    errors: str = ""
    """The end of what it wrote to stderr."""

    def __str__(self) -> str:
        match self.end:
            case ChildEnd.DONE:
                return "ended"
            case ChildEnd.FAILED:
                last = self.errors.splitlines()[-1:] or [""]
                return f"exited with code {self.code}: {last[0]}".removesuffix(": ")
            case ChildEnd.SIGNALLED:
                return f"was ended by {signal_name(self.signal or 0)}"
            case _:
                stuck = ", and it did not die of SIGKILL" if self.stuck else ""
                return f"gave no answer within {self.elapsed_s:.0f} s{stuck}"


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
        variables: Mapping[str, str] | None = None,
        fork: bool = False,
        clock: Clock = monotonic,
    ) -> None:
        """Start ``module`` (it has a function ``main(arguments)``).

        Args:
            module: name of a module of disttest.
            arguments: what its ``main`` gets.
            timeout_s: bound on the whole.
            stall_s: bound on silence; the same as ``timeout_s`` unless given.
            on_line: called with each line that the child speaks.
            variables: of its environment, besides ours.
            fork: the child is a fork of this process, with the modules that it has imported, and no new interpreter.
            clock: a monotonic clock.
        """
        self._on_line = on_line
        self._clock = clock
        self._started_s = self._heard_s = clock()
        self._deadline_s = self._started_s + timeout_s
        self._stall_s = stall_s or math.inf
        self._lines = Lines()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _finish
        self._child = (_fork if fork else _start)(module, arguments, variables or {}, self._errors)
        assert self._child.stdout is not None
        assert self._child.stdin is not None
        self._pipe, self._input = self._child.stdout.fileno(), self._child.stdin
        self.ended: Ended | None = None

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its session."""
        return self._child.pid

    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when it speaks or ends."""
        return () if self.ended else (self._pipe, self._child.fileno())

    def seconds_left(self) -> float:
        """Until it is ended for its silence, if it stays silent."""
        return max(0.0, min(self._deadline_s, self._heard_s + self._stall_s) - self._clock())

    def send(self, message: object, *, stall_s: float) -> None:
        """Give it work, and from now on that long for each answer. A child that has ended misses it."""
        self.expect(stall_s)
        try:
            os.write(self._input.fileno(), msgspec.json.encode(message) + b"\n")
        except (BrokenPipeError, ValueError):
            return

    def expect(self, stall_s: float = math.inf) -> None:
        """Allow that much silence from now on; without a figure, any."""
        self._stall_s = stall_s
        self._heard_s = self._clock()

    def dismiss(self) -> None:
        """Tell it that there is no more work: a child that reads to the end of its input leaves."""
        self._input.close()

    def advance(self) -> Ended | None:
        """Take what it said, end it if its time is up; how it ended, or None while it lives."""
        if self.ended is None:
            self._read()
            if self._child.has_ended():
                self._read()
                self._finish(overdue=False)
            elif self.seconds_left() == 0.0:
                self.kill()
        return self.ended

    def kill(self) -> None:
        """End it and all that it started, now."""
        if self.ended is None:
            self._child.kill_session()
            self._child.has_ended(within_s=BOUNDED_KILL_S)
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
            for line in self._lines.feed(data):
                self._on_line(line)

    def _finish(self, *, overdue: bool) -> None:
        # What it started may still hold our pipe, and more: the whole session goes.
        self._child.kill_session()
        ended = self._child.poll()
        how = ended or Exit()
        self.ended = Ended(
            end=ChildEnd.STALLED if overdue else _end(how),
            code=how.code,
            signal=how.signal,
            elapsed_s=self._clock() - self._started_s,
            stuck=ended is None,
            errors=_tail(self._errors),
        )
        self._child.close()
        self._errors.close()


def _start(
    module: str, arguments: Sequence[str], variables: Mapping[str, str], errors: IO[bytes]
) -> PipedChild:
    ours = (sys.executable, "-P", "-c", _BOOTSTRAP, str(_PACKAGE_ROOT), str(os.getpid()))
    environ = {**os.environ, **variables}  # noqa: TID251 - handed on
    return start_piped([*ours, module, *arguments], environ=environ, errors=errors)


def _fork(
    module: str, arguments: Sequence[str], variables: Mapping[str, str], errors: IO[bytes]
) -> PipedChild:
    parent = os.getpid()

    def main() -> None:
        os.environ.update(variables)  # noqa: TID251 - its own
        _be_child(parent, module, arguments)

    return fork_piped(main, errors=errors)


def _end(how: Exit) -> ChildEnd:
    if how.signal is not None:
        return ChildEnd.SIGNALLED
    return ChildEnd.DONE if how.code == 0 else ChildEnd.FAILED


def _tail(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _STDERR_TAIL))
    return errors.read().decode(errors="replace").strip()


def wait_children(
    children: Iterable[BoundedChild],
    *,
    until: Callable[[], bool] = lambda: False,
    timeout_s: float = math.inf,
    clock: Clock = monotonic,
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
    """Become a bounded child, in a new interpreter."""
    parent, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    _be_child(int(parent), module, arguments)


def _be_child(parent: int, module: str, arguments: Sequence[str]) -> None:
    """Die with the parent, keep stdout for messages, run the module's ``main``."""
    global _speaker
    die_with_parent(parent)
    # Whatever a C library prints goes to stderr; the pipe is for messages alone.
    _speaker = os.dup(1)
    os.dup2(2, 1)
    importlib.import_module(module).main(arguments)
