"""Tests of hangs: a block in which the ranks have to wait for each other for ever."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

_expect: Callable[[str | None], None] | None = None


def provide_board(expect: Callable[[str | None], None]) -> None:
    """Set how this rank notes on the board that it expects a deadlock; called once, by the rank."""
    global _expect  # a process is one rank
    _expect = expect


@contextmanager
def expect_deadlock(match: str = "") -> Iterator[None]:
    """Pass the test when no rank can go on, while all ranks that have not finished it are in such a block.

    The ranks are ended there, so nothing after the block runs, and no tear-down. The test is skipped where no watch looks for
    deadlocks (``--deadlock off``, more than one node, outside of a world).

    Args:
        match: a regular expression that the finding has to match, as in ``pytest.raises``; at most 240 bytes.

    Raises:
        AssertionError: the block was left: there was no deadlock.
        ValueError: the expression is not valid, or is too long.
    """
    try:
        re.compile(match)
    except re.error as error:
        raise ValueError(f"match={match!r} is no regular expression: {error}") from None
    if _expect is None:
        pytest.skip("expect_deadlock needs ranks on one machine, and --deadlock fail or report")
    _expect(match)
    try:
        yield
    finally:
        _expect(None)
    raise AssertionError("no deadlock: this rank has left the block of expect_deadlock")
