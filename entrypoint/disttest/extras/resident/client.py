"""Client of the resident parent: let a fork of it run the command, pass signals on, and wait for its end.

If this process dies, the run gets SIGHUP. If no parent is available, the command runs in this process.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from disttest.descriptors import MOST_AT_ONCE
from disttest.extras.resident.endpoint import ParentEndpoint, endpoint_of
from disttest.extras.resident.fitness import variables_that_matter
from disttest.extras.resident.handover import describe, follow, inheritable
from disttest.extras.resident.limits import RESIDENT_ANSWER_S, RESIDENT_IDLE_S, RESIDENT_START_S
from disttest.extras.resident.messages import (
    NO_MARK,
    Ask,
    ForkRefused,
    ForkRequest,
    ForkTerms,
    Started,
    Status,
    receive_answer,
    send_request,
)
from disttest.extras.resident.place import short
from disttest.host.event_loop import NotedSignals, wait_any
from disttest.host.proc import identity_of, process_state
from disttest.host.process import Child, fork_child, leave, spawn_child
from disttest.limits import KILL_S
from disttest.model import Frozen
from disttest.options.environment import hash_seed
from disttest.runtime.supervisor.reaper import MARK_VARIABLE

Tell = Callable[[str], None]
_ATTEMPTS = 2
"""One attempt with the existing parent, and one with a new one."""
_STOPPED = ("T", "t")
"""States of a process that SIGSTOP or a debugger holds."""


class _Connection(Frozen):
    """A connection to a parent."""

    line: int
    socket_id: tuple[int, int]
    """Device and inode of the parent's socket: they identify the parent."""
    is_new: bool


def run_resident(
    argv: Sequence[str], environ: Mapping[str, str], terms: ForkTerms, *, signals: NotedSignals, tell: Tell
) -> int | None:
    """Let a fork of the parent of this folder run the command.

    Args:
        argv: arguments of the command.
        environ: environment of the command.
        terms: requirements of the run.
        signals: signals that cancel the run.
        tell: prints a line for the user.

    Returns:
        The exit code of the command; None if no parent can run it, for a reason that was printed.

    Raises:
        UsageError: the folder of the parents is not private.
    """
    endpoint = endpoint_of(Path.cwd(), environ)
    # Without DISTTEST_*: a secret in DISTTEST_MASK must not stay in a process that outlives its run.
    variables = variables_that_matter(environ) | hash_seed(terms.seed)
    descriptors = inheritable()
    run = ForkRequest(**describe(argv, environ, descriptors), terms=terms)
    # The message carries the file with the request, too.
    if len(descriptors) >= MOST_AT_ONCE:
        tell("running without a resident parent: too many file descriptors are open")
        return None
    for _ in range(_ATTEMPTS):
        try:
            connection = _open(endpoint, variables, tell)
        except OSError as error:
            tell(
                f"running without a resident parent: {endpoint.folder} cannot be used: {error.strerror or error}"
            )
            return None
        line = socket.socket(fileno=connection.line)
        with line:
            answer, fds = _ask(line, run, descriptors, is_new=connection.is_new, signals=signals)
            match answer:
                case Started():
                    return follow(line, fds[0], signals)
                case int(signum):
                    return 128 + signum
                case ForkRefused(reason=reason) if not connection.is_new:
                    tell(f"replacing the resident parent: {reason}")
                    _give_up(endpoint, connection)
                case ForkRefused(reason=reason):
                    tell(f"running without a resident parent: {reason}")
                    _give_up(endpoint, connection)
                    return None
                case _:
                    tell(f"running without a resident parent: {_last_words(endpoint)}")
                    _give_up(endpoint, connection)
                    return None
    return None


def ask_status(endpoint: ParentEndpoint) -> Status | None:
    """Ask the parent at an endpoint for its status; None if it does not answer."""
    with endpoint.locked():
        line = _connect(endpoint)
    if line is None:
        return None
    with line, contextlib.suppress(OSError):
        # A parent that was stopped accepts the connection and never forks.
        line.settimeout(RESIDENT_ANSWER_S)
        send_request(line, Ask())
        answered = receive_answer(line)
        if answered is not None and isinstance(answered[0], Status):
            return answered[0]
    return None


def stop(endpoint: ParentEndpoint) -> int | None:
    """End the parent at an endpoint, and remove its files. Return its pid, if there was one. Its runs continue."""
    with endpoint.locked():
        return _end_parent(endpoint)


def _end_parent(endpoint: ParentEndpoint) -> int | None:
    """End the parent; the lock is held, and is released by removing its file."""
    process = endpoint.parent()
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            parent = Child(process.pid)
            if endpoint.parent() == process:  # the pid was not reused meanwhile
                signal.pidfd_send_signal(parent.fileno(), signal.SIGKILL)
                parent.has_ended(within_s=KILL_S)
            parent.close()
    endpoint.remove()
    return process.pid if process else None


def _end_stopped(endpoint: ParentEndpoint, tell: Tell) -> None:
    """End a parent that was stopped: it would accept the request and never answer."""
    with endpoint.locked():
        process = endpoint.parent()
        if process is not None and process_state(process.pid) in _STOPPED:
            tell(f"replacing the resident parent: pid {process.pid} was stopped")
            _end_parent(endpoint)


def _open(endpoint: ParentEndpoint, variables: Mapping[str, str], tell: Tell) -> _Connection:
    _end_stopped(endpoint, tell)
    with endpoint.locked():
        line = _connect(endpoint)
        is_new = line is None
        if line is None:
            tell(
                f"starting a resident parent, which ends after {RESIDENT_IDLE_S / 60:g} minutes without a run"
            )
            _start(endpoint, variables)
            line = _connect(endpoint)
        if line is None:
            raise OSError("the parent did not start")
        # Under the lock, so that it is the socket of this very parent.
        facts = endpoint.socket.stat()
        return _Connection(line=line.detach(), socket_id=(facts.st_dev, facts.st_ino), is_new=is_new)


def _connect(endpoint: ParentEndpoint) -> socket.socket | None:
    """Connect to the parent at an endpoint; None if no process listens. The lock is held."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # SEQPACKET keeps the bounds of messages, and its end shows that the other process is gone.
        with short(str(endpoint.socket)) as path:
            line.connect(path)
    except OSError:
        line.close()
        return None
    return line


def _start(endpoint: ParentEndpoint, variables: Mapping[str, str]) -> None:
    """Start a parent that listens before it imports anything, so that no client retries. The lock is held."""
    # A killed parent leaves its socket, and bind(2) refuses a name that exists.
    endpoint.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener:
        with short(str(endpoint.socket)) as path:
            listener.bind(path)
        listener.listen(64)

        def spawn() -> None:
            words = (endpoint.folder, endpoint.name, listener.fileno(), RESIDENT_IDLE_S, Path.cwd())
            parent = spawn_child(
                [sys.executable, "-m", "disttest.extras.resident.parent", *map(str, words)],
                # The placeholder reserves room in the first environment, for the mark that each run writes.
                environ={**variables, MARK_VARIABLE: NO_MARK},
                pass_fds=[listener.fileno()],
                stdout=log.fileno(),
                new_session=True,
            )
            try:
                endpoint.enter(identity_of(parent.pid))
            except OSError:  # a parent that is not recorded could not be ended
                parent.signal(signal.SIGKILL)
            leave(0)

        with endpoint.log.open("wb") as log:
            between = fork_child(spawn)
        # The end of the process in between hands the parent to init, so that it is not a child of the command.
        between.wait(KILL_S)
        between.close()


def _give_up(endpoint: ParentEndpoint, connection: _Connection) -> None:
    """End an unfit parent, unless another one has replaced it."""
    with contextlib.suppress(OSError), endpoint.locked():
        facts = endpoint.socket.stat()
        if (facts.st_dev, facts.st_ino) == connection.socket_id:
            _end_parent(endpoint)


def _last_words(endpoint: ParentEndpoint) -> str:
    with contextlib.suppress(OSError):
        if said := endpoint.log.read_text(errors="replace").strip().splitlines():
            return f"it ended with {said[-1]}"
    return "it did not answer"


def _ask(
    line: socket.socket, run: ForkRequest, descriptors: Sequence[int], *, is_new: bool, signals: NotedSignals
) -> tuple[Started | ForkRefused | int | None, list[int]]:
    """Return the parent's answer; the number of a signal that came first; None if there is no answer."""
    try:
        send_request(line, run, descriptors)
    except OSError:
        return None, []
    limit_s = RESIDENT_START_S if is_new else RESIDENT_ANSWER_S
    is_answered = line in wait_any(line, signals, timeout_s=limit_s)
    if (signum := signals.first()) is not None:
        # The caller closes the connection, which ends a run that has begun by SIGHUP.
        return signum, []
    answered = receive_answer(line) if is_answered else None
    if answered is None or not isinstance(answered[0], Started | ForkRefused):
        return None, []
    return answered[0], answered[1]
