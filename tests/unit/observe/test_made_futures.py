"""The call that a future waits for which is made of other futures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from disttest.observe import hub, patches


class Future:
    """A future that is done, or not."""

    def __init__(self, *, is_done: bool) -> None:
        self.is_done = is_done

    def done(self) -> bool:
        return self.is_done


@pytest.fixture
def made():
    """A future of two others, each with its call."""
    parts = Future(is_done=True), Future(is_done=False)
    future = Future(is_done=False)
    for number, part in enumerate(parts, 1):
        hub.handles[part] = SimpleNamespace(n=number)
    hub.parts[future] = parts
    return future, parts


def test_it_waits_for_the_last_part_that_is_not_done(made):
    future, (first, second) = made
    assert 2 == patches._awaited(future).n

    first.is_done, second.is_done = False, True
    assert 1 == patches._awaited(future).n


def test_parts_that_have_just_been_done_leave_no_wait_for_nothing(made):
    future, (_, second) = made
    second.is_done = True

    assert 2 == patches._awaited(future).n
