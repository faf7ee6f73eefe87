"""Handover of a command to a fork of the resident parent: send the command line, pass signals on, return the exit code.

Most resident runs take this way, which imports neither the command nor its dependencies: its 400 modules take five
times as long as the 50 that are needed here. In all other cases (no parent, an unfit one, a run that wants none, a
wrong option) the command takes over and prints the message.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disttest.descriptors import MOST_AT_ONCE, memory_file
from disttest.extras.resident.limits import RESIDENT_ANSWER_S
from disttest.extras.resident.place import folder_for, is_private, name_for, short
from disttest.host.event_loop import NotedSignals, wait_any
from disttest.limits import KILL_S

if TYPE_CHECKING:
    from signal import Handlers

CANCELLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOPPED = ("T", "t")
"""States of a process that SIGSTOP or a debugger holds."""
_LARGEST = 4096
_FLAG = "--resident"
_VARIABLE = "DISTTEST_RESIDENT"


def run_by_parent(words: Sequence[str], environ: Mapping[str, str]) -> int | None:
    """Let a fork of the parent of this folder run a command, if there is one that accepts it.

    Args:
        words: words of the command line.
        environ: environment of the command.

    Returns:
        The exit code of the command; None if nothing was run and nothing was printed.
    """
    if not _may_be_asked(words, environ):
        return None
    # NotedSignals replaces the handlers. The command that takes over must find those that it started with.
    before: dict[int, Any] = {signum: signal.getsignal(signum) for signum in CANCELLING}
    line = _connect(folder_for(environ), name_for(os.getcwd()))
    if line is None:
        return None
    signals = NotedSignals(CANCELLING)
    with line:
        code = _run_by(line, words, environ, signals)
    if code is None:
        code = _give_back(signals, before)
    return code


def _may_be_asked(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the run may ask for a resident parent. A guess: the fork reads the options."""
    return (
        any(word.startswith(_FLAG) for word in words) or _VARIABLE in environ or _project_may_ask(os.getcwd())
    )


def _project_may_ask(folder: str) -> bool:
    """Whether a pyproject.toml here or above mentions a resident parent."""
    while True:
        path = os.path.join(folder, "pyproject.toml")
        # Opening a named pipe would block until it has a writer.
        if os.path.isfile(path):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if b"resident" in file.read():
                    return True
        above = os.path.dirname(folder)
        if above == folder:
            return False
        folder = above


def _connect(folder: str, name: str) -> socket.socket | None:
    """Connect to the parent of that name; None if there is none that would answer."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if is_private(folder) and not _is_stopped(os.path.join(folder, f"{name}.lock")):
            with short(os.path.join(folder, f"{name}.socket")) as address:
                line.connect(address)
            return line
    except (OSError, ValueError, LookupError, TypeError):
        # The lock file is empty until its parent is entered, and may be damaged.
        pass
    line.close()
    return None


def _is_stopped(lock: str) -> bool:
    with open(lock, "rb") as file:
        pid = json.load(file)["pid"]
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # 4711 (python (3)) T 1 …: the name of the program may have spaces and parentheses.
        return file.read().rpartition(")")[2].split()[0] in _STOPPED


def _run_by(
    line: socket.socket, words: Sequence[str], environ: Mapping[str, str], signals: NotedSignals
) -> int | None:
    descriptors = inheritable()
    if len(descriptors) >= MOST_AT_ONCE:
        return None
    request = {"type": "run", **describe(words, environ, descriptors)}
    try:
        send_with_file(line, json.dumps(request).encode(), descriptors)
        answer, fds = _first_word(line, signals)
    except (OSError, ValueError):
        return None
    # The command asks again, and prints the reason of that refusal.
    if answer.get("type") != "started":
        return None
    return follow(line, fds[0], signals)


def describe(words: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int]) -> dict[str, Any]:
    """Describe this process to the fork that replaces it."""
    return {
        "argv": tuple(words),
        "environ": dict(environ),
        "executable": sys.executable,
        "folder": os.getcwd(),
        "descriptors": tuple(descriptors),
    }


def inheritable() -> list[int]:
    """List the descriptors that a program started by this process would inherit."""
    found = []
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.get_inheritable(fd):
                found.append(fd)
    return found


def send_with_file(line: socket.socket, body: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a request of any length, with descriptors.

    Raises:
        OSError: no process listens any more.
    """
    file = memory_file("disttest-request")
    try:
        os.write(file, body)
        socket.send_fds(line, [b"request"], [file, *descriptors])
    finally:
        os.close(file)


def _first_word(line: socket.socket, signals: NotedSignals) -> tuple[dict[str, Any], list[int]]:
    if line not in wait_any(line, signals, timeout_s=RESIDENT_ANSWER_S):
        return {}, []
    message, fds, _, _ = socket.recv_fds(line, _LARGEST, 1)
    return json.loads(message or b"{}"), list(fds)


def _give_back(signals: NotedSignals, before: Mapping[int, Any]) -> int | None:
    """Restore the signal handlers. Return the exit code if a signal has come meanwhile."""
    signum = signals.first()
    if signum is not None:
        return 128 + signum
    signals.close()
    for number, handler in before.items():
        signal.signal(number, handler)
    return None


def follow(line: socket.socket, run: int, signals: NotedSignals) -> int:
    """Wait for the end of a run, and pass signals on to it.

    Args:
        line: connection to the fork.
        run: pidfd of the fork, which is closed here.
        signals: signals to pass on.

    Returns:
        The exit code of the run.
    """
    with _stopping_with(run):
        while line not in wait_any(line, signals):
            if (signum := signals.first()) is not None:
                _send(run, signum)
    with contextlib.suppress(ConnectionResetError):
        message = line.recv(_LARGEST)
        wait_any(run, timeout_s=KILL_S)  # the locks of the process are free after its end
        os.close(run)
        if message:
            return int(json.loads(message)["code"])
    return 128 + signal.SIGKILL  # the only end without a last message


@contextlib.contextmanager
def _stopping_with(run: int) -> Iterator[None]:
    """Within the context, Ctrl-Z stops the run and this process, and ``fg`` continues both."""

    def stop_both(*_: object) -> None:
        _send(run, signal.SIGSTOP)
        # Returns when the shell continues this process by SIGCONT.
        signal.raise_signal(signal.SIGSTOP)
        _send(run, signal.SIGCONT)

    before: Handlers | Any = signal.signal(signal.SIGTSTP, stop_both)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


def _send(run: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(run, signum)
