"""Answer questions about a rank that may hang: the exception that it is handling, and its collectives.

The main thread may wait in C++ forever. A second thread therefore waits on a named pipe, without the GIL, and answers
when the world asks.

A ``finally`` block with a barrier delays its exception for as long as the barrier waits. The rank is then ended because
of the barrier, and the exception would appear nowhere. The thread therefore also finds an exception that the main thread
has raised and pytest does not know yet.
"""

from __future__ import annotations

import _thread
import contextlib
import linecache
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from time import CLOCK_REALTIME, clock_gettime
from types import FrameType
from typing import Any

import msgspec
from _pytest.assertion import util

from disttest.errors import PluginError
from disttest.model import UNREADABLE, Collective, short_place
from disttest.plugin_manager import plugin_manager
from disttest.runtime.messages.protocol import Raised, clean_text
from disttest.runtime.messages.raised import describe_raised, is_harmless

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
        # `open` waits for a writer and `read` for its end, both without the GIL.
        with questions.open("rb") as pipe:
            target = pipe.read().decode()
        # Missing evidence is acceptable; a new fault is not.
        with contextlib.suppress(Exception):
            _write_in_flight(questions)
        # Last, since the world takes the file of the collectives as the end of the whole answer.
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
        # Not `print`: the main thread may hang while it holds the lock of the stream.
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


_REWRITE = "/_pytest/assertion/rewrite.py"
_UNITTEST = "/unittest/case.py"
_UNITTEST_TEXTS = frozenset({"safe_repr", "_common_shorten_repr"})
_TEXTS = ("/pprint.py", "/difflib.py")
# Local variables in which pytest collects exceptions of finalizers until the last one has run.
_COLLECTED = ("exceptions", "these_exceptions")


def find_in_flight() -> Raised | None:
    """Describe the exception that the main thread handles, or the failed assertion whose message it is building."""
    ident = threading.main_thread().ident
    # Documented for debuggers, despite its name (Python 3.11 to 3.13):
    # https://docs.python.org/3/library/sys.html#sys._current_frames
    frames = tuple(_outwards(sys._current_frames().get(ident or 0)))  # noqa: SLF001
    failed = _failed_assertion(frames)
    if failed is not None:
        return failed
    error = next(chain(_handled_by(ident or 0), _held_by_harness(frames)), None)
    return None if error is None or is_harmless(error) else describe_raised(error)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _handled_by(ident: int) -> Iterator[BaseException]:
    """Yield the exception that a thread is handling, if any."""
    # Documented like `_current_frames` (Python 3.11 to 3.13):
    # https://docs.python.org/3/library/sys.html#sys._current_exceptions
    current: Any = sys._current_exceptions().get(ident)  # noqa: SLF001
    # Python 3.11 and earlier return a tuple like sys.exc_info().
    found = current[1] if isinstance(current, tuple) else current
    if isinstance(found, BaseException):
        yield found


def _held_by_harness(frames: Sequence[FrameType]) -> Iterator[BaseException]:
    """Yield exceptions that unittest and pytest have caught and report only after tearDown and the finalizers."""
    for frame in frames:
        if frame.f_code.co_filename.endswith("/_pytest/unittest.py"):
            held = getattr(frame.f_locals.get("self"), "_excinfo", None) or ()
            yield from (each.value for each in held)
        elif frame.f_code.co_filename.endswith(("/_pytest/runner.py", "/_pytest/fixtures.py")):
            for name in _COLLECTED:
                yield from frame.f_locals.get(name) or ()


def _failed_assertion(frames: Sequence[FrameType]) -> Raised | None:
    """Find the assertion whose message is being built.

    pytest's rewritten ``assert`` and unittest's methods call ``repr()`` on the operands only after the comparison has
    failed, and raise the AssertionError afterwards.
    """
    # With a pytest_assertion_pass hook, pytest also builds messages of assertions that hold (pytest 8.4 to 9.2).
    if util._assertion_pass is not None:  # noqa: SLF001
        return None
    caller = asserting_frame([(frame.f_code.co_filename, frame.f_code.co_name) for frame in frames])
    return None if caller is None else _describe_assertion(frames[caller])


def asserting_frame(frames: Sequence[tuple[str, str]]) -> int | None:
    """Return the index of the frame whose failed assertion is being described; None if there is none.

    Args:
        frames: file and function of each frame, innermost first.
    """
    makes_text = False
    for number, ((file, function), (caller, _)) in enumerate(pairwise(frames)):
        # unittest's own frame alone proves nothing: assertRaises has one as well, while the test's code runs
        # in it.
        makes_text = makes_text or function in _UNITTEST_TEXTS or file.endswith(_TEXTS)
        asserts = file.endswith(_REWRITE) or (makes_text and file.endswith(_UNITTEST))
        if asserts and not caller.endswith((_REWRITE, _UNITTEST)):
            return number + 1
    return None


def _describe_assertion(frame: FrameType) -> Raised:
    file, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(file, line).strip()
    message = f"AssertionError: {source}" if source else "AssertionError"
    place = f'  File "{file}", line {line}, in {frame.f_code.co_name}\n    {source}'
    return Raised(
        message=message,
        place=short_place(file, line),
        details=f"Traceback (most recent call last):\n{place}\n{message}",
        is_assertion=True,
    )
