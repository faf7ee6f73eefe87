"""Bounded work: a module of disttest that runs in a separate child process, which cannot outlive its deadline.

A driver can hang a process for minutes, crash it, or make it unkillable. A thread cannot be killed, and a hung
``ioctl`` takes its process with it. Each access to a device on behalf of the command therefore happens in such a
child. It writes JSON lines to a pipe. It is killed after a silence longer than ``stall_s``. A child that survives
SIGKILL (stuck in the kernel) is abandoned.

:func:`speak` and :func:`run_as_child` are the child's side.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO

import msgspec

import disttest
from disttest.clock import monotonic
from disttest.host.event_loop import wait_any
from disttest.host.lines import Lines
from disttest.host.process import Exit, PipedChild, die_with_parent, fork_piped, signal_name, start_piped
from disttest.limits import BOUNDED_KILL_S
from disttest.model import Frozen

_PACKAGE_ROOT = Path(disttest.__file__).parent.parent

# -P keeps the current directory off the path: a file random.py in a user's checkout must not be imported.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from disttest.host.bounded import run_as_child; run_as_child()"
)

_STDERR_TAIL = 8192


class ChildEnd(StrEnum):
    """How a bounded child ended."""

    DONE = "done"
    """It exited with code 0."""
    FAILED = "failed"
    """It exited with another code."""
    SIGNALLED = "signalled"
    """A signal that disttest did not send ended it."""
    STALLED = "stalled"
    """It was silent for too long or exceeded its time, and was killed."""


class Ended(Frozen):
    """The outcome of a bounded child."""

    end: ChildEnd
    code: int | None = None
    signal: int | None = None
    elapsed_s: float = 0.0
    stuck: bool = False
    """It survived SIGKILL for longer than allowed: the kernel holds it, and perhaps its device."""
    errors: str = ""
    """The last part of its stderr."""

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


# A child, not a thread: `nvidia-smi` can hang for 20 minutes, and only a process can be killed or given up.
# docs/decisions/0026-drivers-in-bounded-children.md
class BoundedChild:
    """A running bounded child. Call :meth:`advance` when one of its descriptors is ready or its time is up."""

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
    ) -> None:
        """Start the module's function ``main(arguments)`` in a child.

        Args:
            module: name of a module of disttest.
            arguments: arguments of its ``main``.
            timeout_s: limit of the whole run.
            stall_s: limit of silence; ``timeout_s`` unless given.
            on_line: called with each line that the child writes.
            variables: environment variables added to those of this process.
            fork: whether the child is a fork of this process, with its imported modules, instead of a new interpreter.
        """
        self._on_line = on_line
        self._started_s = self._heard_s = monotonic()
        self._deadline_s = self._started_s + timeout_s
        self._stall_s = stall_s or math.inf
        self._lines = Lines()
        # A file, not a pipe: the pipe would be read only at the end, and a driver that fills it would block
        # the child.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _finish
        self._child = (_fork if fork else _start)(module, arguments, variables or {}, self._errors)
        assert self._child.stdout is not None
        assert self._child.stdin is not None
        self._pipe, self._input = self._child.stdout.fileno(), self._child.stdin
        self._is_pipe_open = True
        self.ended: Ended | None = None

    @property
    def pid(self) -> int:
        """Process id of the child, which is also its session id."""
        return self._child.pid

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that become readable when the child writes or ends."""
        if self.ended:
            return ()
        # A pipe that the child has closed stays readable until the child ends, and would make each wait return.
        return (self._pipe, self._child.fileno()) if self._is_pipe_open else (self._child.fileno(),)

    @property
    def killed_s(self) -> float:
        """Time on the monotonic clock at which the child is killed if it stays silent."""
        return min(self._deadline_s, self._heard_s + self._stall_s)

    def send(self, message: object, *, stall_s: float) -> None:
        """Send work to the child and set the limit for each answer. A child that has ended misses it."""
        self.expect(stall_s)
        try:
            os.write(self._input.fileno(), msgspec.json.encode(message) + b"\n")
        # Python ignores SIGPIPE, so a child that has ended shows as an error of the write. ValueError:
        # `close_input` was called before.
        except (BrokenPipeError, ValueError):
            return

    def expect(self, stall_s: float = math.inf) -> None:
        """Set the limit of silence from now on; unlimited without an argument."""
        self._stall_s = stall_s
        self._heard_s = monotonic()

    def close_input(self) -> None:
        """Close the child's input: there is no more work, so it leaves at the end of its input."""
        self._input.close()

    def advance(self) -> Ended | None:
        """Read its output, and kill it if its time is up; return its outcome, or None while it lives."""
        if self.ended is None:
            self._read()
            # A pidfd can be ready before the last lines are read. The output is read once more, so that none
            # is lost.
            if self._child.has_ended():
                self._read()
                self._finish(overdue=False)
            # After the read: on a busy machine this process may look late, and a child that has answered in
            # time must not be killed for that.
            elif monotonic() >= self.killed_s:
                self.kill()
        return self.ended

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        if self.ended is None:
            self._child.kill_session()
            # SIGKILL has no effect while the process waits uninterruptibly in a driver, so this wait needs a
            # limit, too.
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
                self._is_pipe_open = False
                return
            self._heard_s = monotonic()
            for line in self._lines.feed(data):
                self._on_line(line)

    def _finish(self, *, overdue: bool) -> None:
        # Processes that it started may still hold the pipe, so the whole session is killed.
        self._child.kill_session()
        # Only now, since its pid, which names the session above, may be reused as soon as it is awaited.
        ended = self._child.poll()
        # Without an exit the child survived SIGKILL. It is given up, because a wait for it could take
        # forever.
        how = ended or Exit()
        self.ended = Ended(
            end=ChildEnd.STALLED if overdue else _end(how),
            code=how.code,
            signal=how.signal,
            elapsed_s=monotonic() - self._started_s,
            stuck=ended is None,
            errors=_tail(self._errors),
        )
        self._child.close()
        self._errors.close()


def _start(
    module: str, arguments: Sequence[str], variables: Mapping[str, str], errors: IO[bytes]
) -> PipedChild:
    # The child compares this pid with getppid(): this process may end before the child has asked to end
    # with it.
    ours = (sys.executable, "-P", "-c", _BOOTSTRAP, str(_PACKAGE_ROOT), str(os.getpid()))
    environ = {**os.environ, **variables}  # noqa: TID251 - passed on
    return start_piped([*ours, module, *arguments], environ=environ, errors=errors)


def _fork(
    module: str, arguments: Sequence[str], variables: Mapping[str, str], errors: IO[bytes]
) -> PipedChild:
    # A fork takes 20 ms instead of the 100 to 140 ms of a new interpreter, two or three times per run. It inherits
    # no descriptor, so one that the kernel never releases holds no lease.
    parent = os.getpid()

    def main() -> None:
        os.environ.update(variables)  # noqa: TID251 - the environment of the child itself
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
) -> None:
    """Wait until all children have ended, each within its own limits, until a condition holds, or for a time."""
    until_s = monotonic() + timeout_s
    living = [child for child in children if child.advance() is None]
    while living and not until() and monotonic() < until_s:
        descriptors = [descriptor for child in living for descriptor in child.descriptors()]
        wait_any(*descriptors, until_s=min(until_s, *(child.killed_s for child in living)))
        living = [child for child in living if child.advance() is None]


_message_pipe: int | None = None


def send_to_parent(message: object) -> None:
    """Send a message to the parent as one line of JSON. Call it in a bounded child only."""
    assert _message_pipe is not None, "only a bounded child speaks"
    line = msgspec.json.encode(message) + b"\n"
    # A pipe takes a part of a long line if its buffer is nearly full.
    while line:
        line = line[os.write(_message_pipe, line) :]


def run_as_child() -> None:
    """Become a bounded child in a new interpreter."""
    parent, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    _be_child(int(parent), module, arguments)


def _be_child(parent: int, module: str, arguments: Sequence[str]) -> None:
    """End with the parent, reserve the pipe for messages, and run the module's ``main``."""
    global _message_pipe
    # Before the import below: torch or a driver's library can hang while it is imported.
    die_with_parent(parent)
    # Output of C libraries goes to stderr. The pipe carries messages only.
    _message_pipe = os.dup(1)
    os.dup2(2, 1)
    importlib.import_module(module).main(arguments)
