"""Tests of hangs: a block in which the ranks are to wait for each other for ever."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

_expect: Callable[[str | None], None] | None = None


def provide_board(expect: Callable[[str | None], None]) -> None:
    """Say how this rank tells its world that it expects a deadlock; called once, by the rank."""
    global _expect  # one rank per process is what a rank is
    _expect = expect


@contextmanager
def expect_deadlock(match: str = "") -> Iterator[None]:
    """The test passes when no rank can go on, while all that are still at it are in such a block.

    They are ended there, so nothing behind the block runs, and no tear-down. Skips the test where nobody looks for
    deadlocks (``--deadlock off``, more than one node, outside of a world).

    Args:
        match: a regular expression that the finding has to match, as in ``pytest.raises``; at most 240 bytes.

    Raises:
        AssertionError: the block was left: there was no deadlock.
        ValueError: the expression makes no sense, or is too long.
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
