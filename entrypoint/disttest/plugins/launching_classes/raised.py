"""Rendering of an exception of a hosted test: the headline, and a traceback of the test's own frames."""

from __future__ import annotations

import re
import traceback
import unittest
from collections.abc import Sequence

import msgspec

from disttest.cut_texts import shorten
from disttest.model import Outcome, RankEnd, RankRecord
from disttest.own_frames import HARNESS
from disttest.results.exit_codes import WOKEN
from disttest.results.headline import headline
from disttest.runtime.messages.protocol import clean_text

_HARNESS = re.compile(
    rf"{HARNESS}|/(torch/testing/_internal/common_(distributed|utils|device_type|fsdp)|disttest/testing/\w+(/\w+)*)\.py$"
)
"""Files whose frames call the test, or are between its assertion and the exception."""


def describe(error: BaseException) -> tuple[str, str]:
    """Return headline and traceback of an exception. Frames of torch's harness and of disttest are removed."""
    trace = traceback.TracebackException.from_exception(error)
    _fold(trace)
    name = type(error).__name__
    return headline(f"{name}: {error}") if str(error).strip() else _bare(name, trace), "".join(trace.format())


def _bare(name: str, trace: traceback.TracebackException) -> str:
    """Return the headline of an assertion without a message: the asserted line."""
    line = trace.stack[-1].line if trace.stack else ""
    return f"{name}: {line}" if line else name


def _fold(trace: traceback.TracebackException | None) -> None:
    seen: set[int] = set()
    while trace is not None and id(trace) not in seen:
        seen.add(id(trace))
        own = [frame for frame in trace.stack if not _HARNESS.search(frame.filename)]
        if own:  # otherwise the harness itself has failed
            trace.stack = traceback.StackSummary.from_list(own)
        trace = trace.__cause__ or trace.__context__


def thread_records(
    size: int, raised: Sequence[tuple[int, BaseException]], *, log: str
) -> tuple[RankRecord, ...]:
    """Return the records of ranks that were threads of one process.

    Args:
        size: number of threads.
        raised: rank and exception of those that failed, in order of time. A thread that waits for a failed one is
            woken by a SystemExit.
        log: log of the process that they share.
    """
    by_rank: dict[int, tuple[int, BaseException]] = {}
    for order, (rank, error) in enumerate(raised):
        by_rank.setdefault(rank, (order, error))
    return tuple(_thread_record(rank, by_rank.get(rank), log) for rank in range(size))


def _thread_record(rank: int, raised: tuple[int, BaseException] | None, log: str) -> RankRecord:
    passed = RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=Outcome.PASSED, phase="call", log=log)
    if raised is None:
        return passed
    order, error = raised
    if isinstance(error, unittest.SkipTest):
        return msgspec.structs.replace(passed, outcome=Outcome.SKIPPED, message=str(error))
    if isinstance(error, SystemExit):
        return RankRecord(rank=rank, end=RankEnd.KILLED, phase="call", message=WOKEN, log=log)
    message, details = describe(error)
    return msgspec.structs.replace(
        passed,
        outcome=Outcome.FAILED,
        message=clean_text(message)[:2000],
        details=shorten(clean_text(details)),
        failed_after_s=order * 1e-6,  # only the order is known
    )
