"""Tests of hangs: a block in which the ranks must wait for each other for ever."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

_expect: Callable[[str | None], None] | None = None


def provide_board(expect: Callable[[str | None], None]) -> None:
    """Set the function by which this rank records an expected deadlock. The rank calls it once."""
    global _expect  # one rank per process
    _expect = expect


@contextmanager
def expect_deadlock(match: str = "") -> Iterator[None]:
    """Pass the test when no rank can continue while all unfinished ranks are in such a block.

    The ranks end there: neither code after the block nor tear-down runs. The test is skipped where no watch looks for
    deadlocks (``--deadlock off``, more than one node, outside of a world).

    Args:
        match: a regular expression that the finding must match, as in ``pytest.raises``; at most 240 bytes.

    Raises:
        AssertionError: the block ended without a deadlock.
        ValueError: the expression is not valid, or is too long.
    """
    try:
        # Compiled here, so that a wrong expression fails at its own line. The world only ignores it.
        re.compile(match)
    except re.error as error:
        raise ValueError(f"match={match!r} is not a valid regular expression: {error}") from None
    if _expect is None:
        pytest.skip("expect_deadlock needs ranks on one machine, and --deadlock fail or report")
    _expect(match)
    try:
        yield
    finally:
        # Also after an exception: otherwise a deadlock in the tear-down would count as expected.
        _expect(None)
    raise AssertionError("no deadlock: this rank has left the block of expect_deadlock")
