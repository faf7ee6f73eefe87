"""Find an exception that the main thread has raised and pytest does not know yet; runs in another thread.

A ``finally`` block with a barrier delays its exception for as long as the barrier waits. The rank is then ended because
of the barrier, and the exception would appear nowhere.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from types import FrameType
from typing import Any

from _pytest.assertion import util

from disttest.model import short_place
from disttest.runtime.messages.protocol import Raised
from disttest.runtime.messages.raised import describe_raised, is_harmless

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
    makes_text = False
    for frame, caller in pairwise(frames):
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        # unittest's own frame alone proves nothing: assertRaises has one as well, while the test's code runs
        # in it.
        makes_text = makes_text or function in _UNITTEST_TEXTS or file.endswith(_TEXTS)
        asserts = file.endswith(_REWRITE) or (makes_text and file.endswith(_UNITTEST))
        if asserts and not caller.f_code.co_filename.endswith((_REWRITE, _UNITTEST)):
            return _describe_assertion(caller)
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
