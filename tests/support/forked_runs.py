"""Runs that are forks of a process with torch imported: a third of the processor time of a run in new processes.

That process is the one of ``--resident``, for all folders instead of one. A run qualifies if a resident parent could run
it: ``tests/integration/test_resident.py`` asserts that its results are the same then.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from disttest.cli.main import command, parted
from disttest.clock import monotonic
from disttest.extras.resident.fitness import variables_that_matter
from disttest.extras.resident.messages import (
    NO_MARK,
    ForkEnded,
    ForkRequest,
    ForkTerms,
    Started,
    receive_answer,
    send_request,
)
from disttest.host.event_loop import wait_any
from disttest.options.environment import hash_seed
from disttest.runtime.supervisor.reaper import MARK_VARIABLE

# With -c Python looks for modules in the current folder: in a fork, in that of its run. PR_SET_PDEATHSIG (1) ends the
# server with the tests, however they end; forks do not inherit it.
_SERVE = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
from disttest.extras.resident.parent import main
main(sys.argv[1:])
"""
_OF_NEW_PROCESSES = (
    *("--setup", "--image", "--launcher", "--nodes", "--device", "--resident"),
    *("--seed", "--help", "--version", "-p"),  # a fork has the hash seed and the plugins of its server
)
_A_DAY_S = 24 * 3600.0
_MOST = 2
"""Servers at a time: each holds 300 MB."""

Key = tuple[str, frozenset[tuple[str, str]]]


class ForkServer:
    """A process with torch imported, for runs of one interpreter in one environment."""

    def __init__(self, python: str, variables: Mapping[str, str]) -> None:
        """Start it; it imports while its first run waits."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener:
            listener.bind("")  # an abstract address that the kernel chooses
            listener.listen(64)
            self._address: bytes = listener.getsockname()
            words = ("/nonexistent", "shared", listener.fileno(), _A_DAY_S, "/nonexistent")
            self._process = subprocess.Popen(
                [python, "-c", _SERVE, *map(str, words)],
                cwd="/",
                env={**variables, **hash_seed(0, variables), MARK_VARIABLE: NO_MARK},
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid

    def run(self, request: ForkRequest, limit_s: float) -> tuple[int, str] | None:
        """Run a command; return its exit code and its output, or None if the server refuses it.

        Raises:
            subprocess.TimeoutExpired: it took longer than the limit; it was ended.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(self._address)
            reading, writing = os.pipe()
            with open(reading, "rb", buffering=0) as output:
                send_request(line, request, [0, writing, writing])
                os.close(writing)
                match receive_answer(line):
                    case (Started(), [run]):
                        return _follow(line, run, output, limit_s)
        return None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _follow(line: socket.socket, run: int, output: io.FileIO, limit_s: float) -> tuple[int, str]:
    try:
        written = _read(output, monotonic() + limit_s)
        if written is None:
            signal.pidfd_send_signal(run, signal.SIGTERM)
            _read(output, monotonic() + 30)
            raise subprocess.TimeoutExpired("disttest", limit_s)
        answered = receive_answer(line)
        wait_any(run)  # its locks are free then
    finally:
        os.close(run)
    code = answered[0].code if answered and isinstance(answered[0], ForkEnded) else -signal.SIGKILL
    return code, io.TextIOWrapper(io.BytesIO(written), errors="replace").read()


def _read(output: io.FileIO, deadline_s: float) -> bytes | None:
    """Read until each writer has closed it; None if that takes too long."""
    parts = []
    while wait_any(output, until_s=deadline_s):
        if not (part := output.read(1 << 16)):
            return b"".join(parts)
        parts.append(part)
    return None


_servers: dict[Key, ForkServer] = {}
_used_once: set[Key] = set()


def server_pids() -> set[int]:
    return {server.pid for server in _servers.values()}


def run_in_fork(
    python: str, arguments: Sequence[str], folder: Path, environ: Mapping[str, str], limit_s: float
) -> tuple[int, str] | None:
    """Run the command as a fork; return its exit code and its output, or None if it has to run in new processes."""
    if not may_fork(arguments, folder, environ):
        return None
    variables = variables_that_matter(environ)
    key = (python, frozenset(variables.items()))
    if key not in _used_once:  # a server costs more than one run saves
        _used_once.add(key)
        return None
    request = ForkRequest(
        argv=tuple(arguments),
        environ=dict(environ),
        executable=python,
        folder=str(folder),
        descriptors=(0, 1, 2),
        terms=ForkTerms(seed=0),
    )
    ended = _server_for(key).run(request, limit_s)
    if ended is None:  # a file that it has loaded was changed
        _servers.pop(key).end()
    return ended


def may_fork(arguments: Sequence[str], folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether a resident parent could run the command, with the hash seed of the default seed."""
    words, _ = parted(arguments)
    project = folder / "pyproject.toml"
    return (
        command.spelled_out(words)[:1] == ["run"]
        and not any(word.startswith(_OF_NEW_PROCESSES) for word in words)
        and not {"DISTTEST_SEED", "DISTTEST_DEVICE"} & environ.keys()
        and not (project.is_file() and "seed" in project.read_text())
    )


def _server_for(key: Key) -> ForkServer:
    if key not in _servers:
        if len(_servers) == _MOST:
            _servers.pop(next(iter(_servers))).end()
        python, variables = key
        _servers[key] = ForkServer(python, dict(variables))
    return _servers[key]


@atexit.register
def _end_servers() -> None:
    for server in _servers.values():
        server.end()
