"""A pytest process, forked before its run with torch imported, that waits for its orders.

    supervisor --(Orders; its output and the descriptors that it inherits)--> pytest process

The supervisor treats it as a child that it has started.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from disttest.descriptors import MOST_AT_ONCE, is_open, memory_file, new_streams, take_descriptors
from disttest.extras.resident.messages import NO_MARK
from disttest.host.imports import KeptImports, keep_only_of_settled_sources, loaded
from disttest.host.proc import first_environment
from disttest.host.process import Child, fork_here, leave
from disttest.model import Frozen
from disttest.runtime.supervisor.reaper import MARK_VARIABLE

if TYPE_CHECKING:
    from disttest.runtime.supervisor.run_supervisor import PytestStart

_PYTEST = ("-m", "pytest")


class Orders(Frozen):
    """Orders of a pytest process."""

    arguments: tuple[str, ...]
    environ: dict[str, str]
    directory: str
    numbers: tuple[int, ...]
    """Numbers of its descriptors."""


class Standby:
    """The supervisor's handle. The process ends with the command if it gets no orders."""

    def __init__(self, child: Child, line: socket.socket) -> None:
        self._child = child
        self._line = line

    def start(self, start: PytestStart) -> Child:
        """Start pytest in the process."""
        numbers = (0, 1, 2, *start.pass_fds)
        fds = (0, start.outputs.get("stdout", 1), start.outputs.get("stderr", 2), *start.pass_fds)
        found = [(number, fd) for number, fd in zip(numbers, fds, strict=True) if is_open(fd)]
        orders = Orders(
            # Options of the interpreter before `-m pytest` cannot be given to a process that runs already.
            arguments=tuple(start.argv[start.argv.index(_PYTEST[0]) + len(_PYTEST) :]),
            # Passed on unchanged; nothing is read from it here.
            environ={**os.environ, **start.extra_env},  # noqa: TID251  # handed on as it is
            directory=str(Path.cwd()),
            numbers=tuple(number for number, _ in found),
        )
        # Larger than a socket message, and without a name that tests could find.
        body = memory_file("disttest-orders")
        os.write(body, msgspec.json.encode(orders))
        socket.send_fds(self._line, [b"orders"], [body, *(fd for _, fd in found)])
        os.close(body)
        self._line.close()
        return self._child


_standing_by: list[Standby] = []


def stand_by(connection: socket.socket, at_end: Callable[[], None]) -> None:
    """Fork a pytest process that waits for :func:`take_standby`; this process continues as the command.

    Args:
        connection: connection of the command, which the pytest process closes.
        at_end: called by the pytest process after pytest.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = fork_here()
    if child is None:
        ours.close()
        # Otherwise the client would not see the end of a killed command while this process lives.
        connection.close()
        _run_pytest(theirs, at_end)
    theirs.close()
    _standing_by.append(Standby(child, ours))


def is_standing_by() -> bool:
    """Whether this process is a command that was forked with torch imported, and has not begun its run."""
    return bool(_standing_by)


def take_standby() -> Standby | None:
    """Return the waiting process once; None if there is none."""
    return _standing_by.pop() if _standing_by else None


# --- in the pytest process


def _run_pytest(line: socket.socket, at_end: Callable[[], None]) -> NoReturn:
    """Wait for orders, then act as ``python -m pytest`` until the interpreter ends."""
    # Returns an empty message if the command ends without using the process.
    message, received, _, _ = socket.recv_fds(line, 64, MOST_AT_ONCE)
    line.close()
    if not message:
        leave(0)
    body, *descriptors = received
    orders = msgspec.json.decode(Path(f"/proc/self/fd/{body}").read_bytes(), type=Orders)
    take_descriptors(descriptors, orders.numbers)
    new_streams()
    become(orders.environ, orders.directory)
    _carry_mark(orders.environ[MARK_VARIABLE])
    if (numpy := loaded("numpy")) is not None:
        # A new process draws a seed for numpy; a fork must do so explicitly. `random` reseeds itself after a fork.
        # https://github.com/numpy/numpy/issues/9650
        numpy.random.seed()
    # run_module sets the first word to the file of pytest, as `python -m` does.
    sys.argv = ["", *orders.arguments]
    keep_only_of_settled_sources()
    kept = KeptImports()
    try:
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit:
        # Only now is it known which modules the run has imported.
        at_end()
        kept.prepare_end()
        raise
    sys.exit(0)  # noqa: TID251


def become(environ: Mapping[str, str], directory: str) -> None:
    """Take over the environment and the directory of another process."""
    os.environ.clear()  # noqa: TID251
    os.environ.update(environ)  # noqa: TID251
    os.chdir(directory)


def _carry_mark(mark: str) -> None:
    """Write the mark into the initial environment, where the kernel shows it for this process and its forks.

    Raises:
        RuntimeError: the parent process reserved no space for the mark.
    """
    address, size = first_environment()
    place = ctypes.string_at(address, size).find(f"{MARK_VARIABLE}={NO_MARK}".encode())
    if place < 0 or len(mark) != len(NO_MARK):
        raise RuntimeError("the initial environment has no room for the mark of the run")
    # `os.environ` changes a copy; /proc/PID/environ shows the original memory.
    ctypes.memmove(address + place + len(MARK_VARIABLE) + 1, mark.encode(), len(mark))
