"""Answer questions about a rank that may hang: the exception that it is handling, and its collectives.

The main thread may wait in C++ forever. A second thread therefore waits on a named pipe, without the GIL, and answers
when the world asks.
"""

from __future__ import annotations

import _thread
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from time import CLOCK_REALTIME, clock_gettime

import msgspec

from disttest.errors import PluginError
from disttest.model import UNREADABLE, Collective
from disttest.plugin_manager import plugin_manager
from disttest.runtime.messages.protocol import Raised, clean_text
from disttest.runtime.rank.in_flight import find_in_flight

_encoder = msgspec.json.Encoder()


def answer_questions(questions: Path, rank: int) -> None:
    """Start the answering thread. A process that writes a path into the named pipe gets the answer there.

    The thread is started below `threading`, so that tests which count Python threads do not see it.
    """
    # A named pipe: the world can ask at any time, and a rank without the thread is noticed by a missing
    # reader.
    os.mkfifo(questions)
    # `threading.Thread` would appear in `threading.enumerate()`.
    _thread.start_new_thread(_answer, (questions, rank))


def _answer(questions: Path, rank: int) -> None:
    while True:
        with questions.open("rb") as pipe:
            target = pipe.read().decode()
        # Missing evidence is acceptable; a new fault is not.
        with contextlib.suppress(Exception):
            _write_in_flight(questions)
        with contextlib.suppress(Exception):
            _write_calls(Path(target), rank)


_since_s = 0.0


def note_start() -> None:
    """Start a new test: earlier calls do not belong to it."""
    global _since_s  # one rank per process
    # Recorders use the wall clock. A system call reads it, because tests replace `time.time`.
    _since_s = clock_gettime(CLOCK_REALTIME)


def in_flight_path(questions: Path) -> Path:
    """The file in which a rank writes the exception that it is handling, before its collectives."""
    return questions.with_suffix(".raised")


def _write_in_flight(questions: Path) -> None:
    raised = find_in_flight()
    if raised is None:
        return
    hidden = msgspec.structs.replace(
        raised,
        message=clean_text(raised.message)[:2000],
        place=clean_text(raised.place),
        details=clean_text(raised.details),
    )
    _write_whole(in_flight_path(questions), _encoder.encode(hidden))


def ask(questions: Path, target: Path) -> bool:
    """Ask a rank to write its collectives to ``target``; return False if it does not listen."""
    try:
        # Without O_NONBLOCK the call would wait for a reader; with it a missing reader is ENXIO.
        fd = os.open(questions, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, str(target).encode())
    except BrokenPipeError:
        return False
    finally:
        os.close(fd)
    return True


def _write_calls(target: Path, rank: int) -> None:
    calls: Sequence[Collective] | None = None
    try:
        calls = plugin_manager().call(
            "disttest_calls_of_rank", rank=rank, since_s=_since_s, folder=target.parent
        )
    # The test has failed already; its log names the plugin.
    except PluginError as error:
        os.write(2, f"disttest: {error}\n".encode())
    _write_whole(target, _encoder.encode(tuple(calls or ())))


def _write_whole(path: Path, data: bytes) -> None:
    # The reader polls for the name and must not see half a file.
    pending = path.with_name(f"{path.name}.pending")
    pending.write_bytes(data)
    pending.rename(path)


def read_answer(target: Path) -> tuple[Collective, ...]:
    """Read the collectives from an answer."""
    return msgspec.json.decode(target.read_bytes(), type=tuple[Collective, ...])


def read_in_flight(questions: Path) -> Raised | None:
    """Read the exception that the rank was handling; None if it wrote none."""
    try:
        return msgspec.json.decode(in_flight_path(questions).read_bytes(), type=Raised)
    except (OSError, *UNREADABLE):
        return None
