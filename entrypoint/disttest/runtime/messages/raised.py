"""Describe an exception without running any code of the test.

``str()`` and ``repr()`` belong to the test: they may block, or call a collective that no other rank joins. These
descriptions therefore read only types, plain arguments, code objects and sources.
"""

from __future__ import annotations

import re
import traceback
import unittest
from collections.abc import Iterator
from itertools import islice
from types import TracebackType, WrapperDescriptorType

import pytest
from _pytest.outcomes import OutcomeException

from disttest.errors import ExitCode
from disttest.model import Outcome, short_place
from disttest.results.hang_findings import HARNESS, is_library
from disttest.results.headline import headline
from disttest.results.verdict import is_consequence
from disttest.runtime.messages.protocol import Raised, RunStop

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_HARMLESS = (StopIteration, StopAsyncIteration, GeneratorExit, unittest.SkipTest)
_DEEPEST = 4
_LONGEST_CHAIN = 5
_MOST_FRAMES = 100
_RUNNER = re.compile(rf"/(_pytest|pluggy|disttest/observe)/|{HARNESS}")


def failed_outcome(phase: str, *, xfail: bool) -> Outcome:
    """Return pytest's outcome of a failed phase."""
    if xfail:
        return Outcome.XFAILED
    return Outcome.FAILED if phase == "call" else Outcome.ERROR


def stop_of(error: BaseException) -> RunStop | None:
    """Return the end of the run that an exception requests, as pytest reads it; None if it requests none.

    An exit code of 0 counts as 2, because tests were not run.
    """
    if not isinstance(error, (pytest.exit.Exception, KeyboardInterrupt)):
        return None
    code = error.returncode if isinstance(error, pytest.exit.Exception) else None
    return RunStop(reason=describe_raised(error).with_place, exit_code=code or int(ExitCode.INTERRUPTED))


def asked_stop(session: pytest.Session) -> RunStop | None:
    """Return the end of the run that a hook or a fixture has requested, as pytest reads it after each test."""
    reason = session.shouldfail or session.shouldstop
    code = ExitCode.FAILED if session.shouldfail else ExitCode.INTERRUPTED
    return RunStop(reason=str(reason), exit_code=int(code)) if reason else None


def first_exit(error: BaseException) -> BaseException:
    """Return the exception with which the test itself ended the run.

    pytest raises the exit of a unittest method a second time, without its code (``TestCaseFunction.addError``).
    """
    context = error.__context__
    is_again = isinstance(error, pytest.exit.Exception) and isinstance(context, pytest.exit.Exception)
    return context if is_again and context is not None else error


def describe_raised(error: BaseException) -> Raised:
    """Describe an exception that was raised.

    Args:
        error: any exception.
    """
    traceback_ = _traceback_of(error)
    return Raised(
        message=_plain_headline(error), place=_innermost_place(traceback_), details=_plain_traceback(error)
    )


def describe_held_back(error: BaseException) -> Raised | None:
    """Describe the exception that a block delayed when its own wait for a peer failed; None if there is none.

    ``finally: barrier()`` replaces the exception of the test by that of the barrier, which has lost a peer.
    """
    # `error` itself if it is no consequence of a lost peer.
    first = next((each for each in _chain(error) if not is_consequence(_plain_headline(each))), None)
    return None if first is None or first is error or is_harmless(first) else describe_raised(first)


def is_skip(error: BaseException | None) -> bool:
    """Whether an exception skips a test or expects its failure; in a tear-down it changes nothing."""
    return isinstance(error, (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest))


def is_harmless(error: BaseException) -> bool:
    """Whether an exception is a skip, or ends an iteration."""
    skips = isinstance(error, OutcomeException) and not isinstance(error, pytest.fail.Exception)
    return skips or isinstance(error, _HARMLESS)


def _traceback_of(error: BaseException) -> TracebackType | None:
    # Read through the base class: the class of the test may define a property of that name.
    found: TracebackType | None = BaseException.__traceback__.__get__(error)  # type: ignore[union-attr]
    return found


def _plain_headline(error: BaseException) -> str:
    text = _plain_text(error)
    name = type(error).__name__
    return headline(f"{name}: {text}") if text.strip() else name


def _plain_text(error: BaseException) -> str:
    """Return ``str(error)`` if that runs only Python's own code; otherwise its plain arguments."""
    arguments: tuple[object, ...] = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    if isinstance(error, BaseExceptionGroup):
        # Its text counts the exceptions and does not render them.
        arguments = arguments[:1]
    # A `__str__` in C is a slot wrapper, and one in Python a function. Only the second may be code of the
    # test.
    is_builtin = isinstance(type(error).__str__, WrapperDescriptorType)
    if is_builtin and all(map(_is_plain, arguments)):
        return str(error)
    return ", ".join(argument for argument in arguments if type(argument) is str)


def _is_plain(value: object, depth: int = 0) -> bool:
    # Exact types, because a subclass may define `__str__`.
    if type(value) in _PLAIN:
        return True
    is_sequence = type(value) in (tuple, list) and depth < _DEEPEST
    return is_sequence and all(_is_plain(item, depth + 1) for item in value)  # type: ignore[attr-defined]


def _innermost_place(traceback_: TracebackType | None) -> str:
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(traceback_)]
    own = [frame for frame in frames if not is_library(frame[0])]
    return short_place(*(own or frames)[-1]) if frames else ""


def _plain_traceback(error: BaseException) -> str:
    """Format the chain of exceptions, oldest first, each with its frames and sources."""
    chain = [*islice(_chain(error), _LONGEST_CHAIN)]
    return "\n\nDuring handling of it:\n\n".join(_one_traceback(each) for each in reversed(chain))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that preceded it, each once, because Python allows cycles of causes."""
    known: set[int] = set()
    while error is not None and id(error) not in known:
        known.add(id(error))
        yield error
        error = _earlier(error)


def _earlier(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _one_traceback(error: BaseException) -> str:
    # Without `capture_locals`, so no repr() of the test runs.
    frames = traceback.StackSummary.extract(traceback.walk_tb(_traceback_of(error)), limit=_MOST_FRAMES)
    own = [frame for frame in frames if not _RUNNER.search(frame.filename)]
    lines = traceback.StackSummary.from_list(own or frames).format()
    return "".join(["Traceback (most recent call last):\n", *lines, _plain_headline(error)])
