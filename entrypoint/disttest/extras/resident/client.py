"""A command that has a fork of the resident parent run in its place: hands over what it was given, and waits.

Signals that reach it are passed on, its end is the run's end, and its death is told to the run as a hang-up. Where no
parent can be had, the command runs by itself.
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
from disttest.extras.resident.handover import describe, first_of, follow, inheritable
from disttest.extras.resident.limits import RESIDENT_ANSWER_S, RESIDENT_IDLE_S, RESIDENT_START_S
from disttest.extras.resident.messages import (
    Ask,
    ForkRefused,
    ForkRequest,
    Started,
    Status,
    receive_answer,
    send_request,
)
from disttest.extras.resident.place import short
from disttest.extras.resident.terms import ForkTerms
from disttest.host.proc import identity_of, process_state
from disttest.host.process import Child, fork_child, leave, spawn_child
from disttest.host.signals import NotedSignals
from disttest.limits import KILL_S
from disttest.model import Frozen
from disttest.options.environment import hash_seed
from disttest.runtime.supervisor.reaper import MARK_VARIABLE, NO_MARK

Tell = Callable[[str], None]
_ATTEMPTS = 2
"""With the parent that is there, and with a new one."""
_STOPPED = ("T", "t")
"""States of a process that SIGSTOP or a debugger holds."""


class _Connection(Frozen):
    """A connection to a parent."""

    line: int
    socket_id: tuple[int, int]
    """The file of its socket: whether it is still the same parent's."""
    is_new: bool


def run_resident(
    argv: Sequence[str], environ: Mapping[str, str], terms: ForkTerms, *, signals: NotedSignals, tell: Tell
) -> int | None:
    """Have a fork of the parent of this folder run the command.

    Args:
        argv: arguments of the command.
        environ: its environment.
        terms: of the run.
        signals: those that cancel the run.
        tell: says a line to the user.

    Returns:
        The exit code of the command; None where no parent can run it, which was told.

    Raises:
        UsageError: the folder of the parents is not private.
    """
    endpoint = endpoint_of(Path.cwd(), environ)
    variables = variables_that_matter(environ) | hash_seed(terms.seed)
    descriptors = inheritable()
    run = ForkRequest(**describe(argv, environ, descriptors), terms=terms)
    if len(descriptors) >= MOST_AT_ONCE:
        tell("too many descriptors are open for a resident parent: this run goes without it")
        return None
    for _ in range(_ATTEMPTS):
        connection = _open(endpoint, variables, tell)
        line = socket.socket(fileno=connection.line)
        with line:
            answer, fds = _ask(line, run, descriptors, is_new=connection.is_new, signals=signals)
            match answer:
                case Started():
                    return follow(line, fds[0], signals)
                case int(signum):
                    return 128 + signum
                case ForkRefused(reason=reason) if not connection.is_new:
                    tell(f"a new resident parent: {reason}")
                    _give_up(endpoint, connection)
                case ForkRefused(reason=reason):
                    tell(f"this run goes without a resident parent: {reason}")
                    _give_up(endpoint, connection)
                    return None
                case _:
                    tell(f"this run goes without a resident parent: {_last_words(endpoint)}")
                    _give_up(endpoint, connection)
                    return None
    return None


def ask_status(endpoint: ParentEndpoint) -> Status | None:
    """How the parent at an endpoint is; None where it does not say."""
    with endpoint.locked():
        line = _connect(endpoint)
    if line is None:
        return None
    with line, contextlib.suppress(OSError):
        line.settimeout(RESIDENT_ANSWER_S)
        send_request(line, Ask())
        answered = receive_answer(line)
        if answered is not None and isinstance(answered[0], Status):
            return answered[0]
    return None


def stop(endpoint: ParentEndpoint) -> int | None:
    """End the parent at an endpoint, and leave nothing of it; its pid, if there was one. Runs that have begun go on."""
    with endpoint.locked():
        return _end_parent(endpoint)


def _end_parent(endpoint: ParentEndpoint) -> int | None:
    """The same where the lock is held, which is nobody's afterwards."""
    process = endpoint.parent()
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            parent = Child(process.pid)
            if endpoint.parent() == process:  # and not a new process with its pid
                signal.pidfd_send_signal(parent.fileno(), signal.SIGKILL)
                parent.has_ended(within_s=KILL_S)
            parent.close()
    endpoint.remove()
    return process.pid if process else None


def _end_stopped(endpoint: ParentEndpoint, tell: Tell) -> None:
    """End a parent that was stopped: it would take the request, and not answer."""
    with endpoint.locked():
        process = endpoint.parent()
        if process is not None and process_state(process.pid) in _STOPPED:
            tell(f"a new resident parent: pid {process.pid} was stopped")
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
        assert line is not None
        facts = endpoint.socket.stat()
        return _Connection(line=line.detach(), socket_id=(facts.st_dev, facts.st_ino), is_new=is_new)


def _connect(endpoint: ParentEndpoint) -> socket.socket | None:
    """A connection to the parent at an endpoint; None where nobody listens. The lock is held."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with short(str(endpoint.socket)) as path:
            line.connect(path)
    except OSError:
        line.close()
        return None
    return line


def _start(endpoint: ParentEndpoint, variables: Mapping[str, str]) -> None:
    """Start a parent that listens from the first moment on. The lock is held."""
    endpoint.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener:
        with short(str(endpoint.socket)) as path:
            listener.bind(path)
        listener.listen(64)

        def spawn() -> None:
            words = (endpoint.folder, endpoint.name, listener.fileno(), RESIDENT_IDLE_S, Path.cwd())
            with endpoint.log.open("wb") as log:
                parent = spawn_child(
                    [sys.executable, "-m", "disttest.extras.resident.parent", *map(str, words)],
                    environ={**variables, MARK_VARIABLE: NO_MARK},
                    pass_fds=[listener.fileno()],
                    stdout=log.fileno(),
                    new_session=True,
                )
            endpoint.enter(identity_of(parent.pid))
            leave(0)

        between = fork_child(spawn)  # whose end hands the parent to init: it is nobody's child
        between.wait(KILL_S)
        between.close()


def _give_up(endpoint: ParentEndpoint, connection: _Connection) -> None:
    """End a parent that is not fit, unless another one is there by now."""
    with endpoint.locked(), contextlib.suppress(FileNotFoundError):
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
    """What the parent says; the number of a signal that came before it did, None where it says nothing."""
    try:
        send_request(line, run, descriptors)
    except OSError:
        return None, []
    is_answered = first_of(line, signals, limit_s=RESIDENT_START_S if is_new else RESIDENT_ANSWER_S)
    if (signum := signals.first()) is not None:
        return signum, []
    answered = receive_answer(line) if is_answered else None
    if answered is None or not isinstance(answered[0], Started | ForkRefused):
        return None, []
    return answered[0], answered[1]
