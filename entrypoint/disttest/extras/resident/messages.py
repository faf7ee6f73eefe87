"""What a command and a resident parent say to each other.

    command --(ForkRequest or Ask; a file in memory with it where it is long; descriptors)--> fork of the parent
    fork    --(Started, with its pidfd, then ForkEnded; or ForkRefused; or Status)--> command

The parent itself says nothing: it forks for each connection, and the fork listens. The module ``handover`` speaks the same
without these classes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from disttest.descriptors import MOST_AT_ONCE
from disttest.extras.resident.handover import send_with_file
from disttest.extras.resident.terms import ForkTerms
from disttest.model import Frozen

_LARGEST = 4096
"""Bytes of a message; a request is a file, since an environment has no limit."""


class ForkRequest(Frozen, tag="run"):
    """Be the command with these arguments; its descriptors come with the message."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    executable: str
    folder: str
    descriptors: tuple[int, ...]
    """The numbers that the passed descriptors have in the command."""
    terms: ForkTerms | None = None
    """Of the run, which is to be a fork; None where nobody has read the options yet."""


class Ask(Frozen, tag="ask"):
    """Say how the parent is; nothing is run."""


class Started(Frozen, tag="started"):
    """A fork has become the command; its pidfd comes with it."""


class ForkRefused(Frozen, tag="refused"):
    """The parent is not fit for it: the command ends it."""

    reason: str


class ForkEnded(Frozen, tag="ended"):
    """The command has ended."""

    code: int


class Status(Frozen, tag="status"):
    """How the parent is."""

    folder: str
    runs: int
    """How many it has forked."""
    age_s: float
    idle_s: float
    """How long it stays without a run."""
    imports: tuple[str, ...] = ()
    """What it has imported besides what each parent has."""


Answer = Started | ForkRefused | ForkEnded | Status
_requests = msgspec.json.Decoder(ForkRequest | Ask)
_answers = msgspec.json.Decoder(Answer)


def send_request(line: socket.socket, request: ForkRequest | Ask, descriptors: Sequence[int] = ()) -> None:
    """Send it.

    Raises:
        OSError: nobody listens any more.
    """
    send_with_file(line, msgspec.json.encode(request), descriptors)


def receive_request(line: socket.socket) -> tuple[ForkRequest | Ask, list[int]] | None:
    """The request and the descriptors that came with it; None where the other side has gone.

    Raises:
        OSError: the other side is too slow.
    """
    message, passed, _, _ = socket.recv_fds(line, _LARGEST, MOST_AT_ONCE)
    if not message:
        return None
    body, *descriptors = passed
    try:
        return _requests.decode(Path(f"/proc/self/fd/{body}").read_bytes()), descriptors
    finally:
        os.close(body)


def send_answer(line: socket.socket, answer: Answer, descriptors: Sequence[int] = ()) -> None:
    """Send it.

    Raises:
        OSError: nobody listens any more.
    """
    socket.send_fds(line, [msgspec.json.encode(answer)], descriptors)


def receive_answer(line: socket.socket) -> tuple[Answer, list[int]] | None:
    """The answer and the descriptors that came with it; None where the other side has gone.

    Raises:
        OSError: the other side is too slow.
    """
    try:
        message, passed, _, _ = socket.recv_fds(line, _LARGEST, 1)
    except ConnectionResetError:
        return None
    return (_answers.decode(message), list(passed)) if message else None
