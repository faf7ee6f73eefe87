"""Messages between a command and a resident parent.

    command --(ForkRequest or Ask, in a memory file; descriptors)--> fork of the parent
    fork    --(Started, with its pidfd, then ForkEnded; or ForkRefused; or Status)--> command

The parent sends nothing: it forks for each connection, and the fork reads the request. The module ``handover`` uses the
same protocol without these classes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from disttest.descriptors import MOST_AT_ONCE
from disttest.extras.resident.handover import send_with_file
from disttest.model import Frozen


class ForkTerms(Frozen):
    """Requirements read from the options of the run."""

    seed: int
    """Seed of the run, from which the ``PYTHONHASHSEED`` of all processes is derived."""
    imports: tuple[str, ...] = ()
    """Modules that the parent may have imported in addition to torch, pytest and the plugin."""


NO_MARK = "0" * 32
"""Placeholder of the same length as the mark of a run, for a process that is marked after its start."""
_LARGEST = 4096
"""Largest message in bytes; a request is sent as a file, since an environment has no limit."""


class ForkRequest(Frozen, tag="run"):
    """Request to become the command with these arguments; its descriptors come with the message."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    executable: str
    folder: str
    descriptors: tuple[int, ...]
    """Numbers of the passed descriptors in the command."""
    terms: ForkTerms | None = None
    """Requirements of the run; None if the options have not been read yet."""


class Ask(Frozen, tag="ask"):
    """Request for the status of the parent; nothing is run."""


class Started(Frozen, tag="started"):
    """A fork has become the command; its pidfd comes with the message."""


class ForkRefused(Frozen, tag="refused"):
    """The parent does not fit the request; the client ends it."""

    reason: str


class ForkEnded(Frozen, tag="ended"):
    """The command has ended."""

    code: int


class Status(Frozen, tag="status"):
    """Status of a parent."""

    folder: str
    runs: int
    """Number of runs that it has forked."""
    age_s: float
    idle_s: float
    """Time that it stays without a run."""
    imports: tuple[str, ...] = ()
    """Modules that it has imported in addition to those of each parent."""


Answer = Started | ForkRefused | ForkEnded | Status
_requests = msgspec.json.Decoder(ForkRequest | Ask)
_answers = msgspec.json.Decoder(Answer)


def send_request(line: socket.socket, request: ForkRequest | Ask, descriptors: Sequence[int] = ()) -> None:
    """Send a request.

    Raises:
        OSError: no process listens any more.
    """
    # Descriptors instead of a relay: terminal, pipes and files arrive as they are, and nothing copies data.
    send_with_file(line, msgspec.json.encode(request), descriptors)


def receive_request(line: socket.socket) -> tuple[ForkRequest | Ask, list[int]] | None:
    """Receive a request and its descriptors; None if the other side has gone.

    Raises:
        OSError: the other side is too slow.
    """
    message, passed, _, _ = socket.recv_fds(line, _LARGEST, MOST_AT_ONCE)
    if not message:
        return None
    body, *descriptors = passed
    try:
        # Through /proc, which opens the file at offset 0. The passed descriptor is at the end of the text.
        return _requests.decode(Path(f"/proc/self/fd/{body}").read_bytes()), descriptors
    finally:
        os.close(body)


def send_answer(line: socket.socket, answer: Answer, descriptors: Sequence[int] = ()) -> None:
    """Send an answer.

    Raises:
        OSError: no process listens any more.
    """
    socket.send_fds(line, [msgspec.json.encode(answer)], descriptors)


def receive_answer(line: socket.socket) -> tuple[Answer, list[int]] | None:
    """Receive an answer and its descriptors; None if the other side has gone.

    Raises:
        OSError: the other side is too slow.
    """
    try:
        message, passed, _, _ = socket.recv_fds(line, _LARGEST, 1)
    except ConnectionResetError:
        return None
    return (_answers.decode(message), list(passed)) if message else None
