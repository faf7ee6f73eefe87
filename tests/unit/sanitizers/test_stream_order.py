"""Which streams come after which calls, from events alone."""

from __future__ import annotations

import pytest

from disttest.extras.sanitizers.race.cuda_streams import StreamOrder

DEFAULT, SIDE, OTHER, BACKEND = 0, 1, 2, 9
CALL = 7


def issue_apart(order, call=CALL, *, current=DEFAULT, end=100):
    """As an asynchronous call over NCCL: its stream waits for the current one, and records an event when it is done."""
    order.begin_issue(current)
    order.record(end + 1, current)
    order.wait(end + 1, BACKEND)
    order.record(end, BACKEND)
    return order.end_issue(call)


def issue_here(order, call=CALL, *, current=DEFAULT):
    """As one that is not asynchronous: it runs on the current stream."""
    order.begin_issue(current)
    order.record(200, current)
    return order.end_issue(call)


@pytest.fixture
def order():
    return StreamOrder()


def behind(order, call=CALL):
    return {stream for stream in (DEFAULT, SIDE, OTHER) if order.is_behind(stream, call)}


def test_no_stream_comes_after_an_asynchronous_call_before_it_waits(order):
    assert issue_apart(order)
    assert set() == behind(order)

    order.wait(100, SIDE)

    assert {SIDE} == behind(order)


def test_the_current_stream_comes_after_a_call_that_is_not_asynchronous(order):
    assert issue_here(order, current=SIDE)

    assert {SIDE} == behind(order)


def test_who_waits_for_a_stream_comes_after_all_that_it_has_waited_for(order):
    issue_apart(order)
    order.wait(100, SIDE)
    order.record(1, SIDE)
    order.wait(1, DEFAULT)
    order.record(2, DEFAULT)
    order.wait(2, OTHER)

    assert {DEFAULT, SIDE, OTHER} == behind(order)


def test_an_event_is_of_the_moment_when_it_was_recorded(order):
    issue_apart(order)
    order.record(1, SIDE)
    order.wait(100, SIDE)
    order.wait(1, DEFAULT)
    assert {SIDE} == behind(order)

    order.record(1, SIDE)  # again
    order.wait(1, DEFAULT)

    assert {SIDE, DEFAULT} == behind(order)


def test_a_later_call_of_a_backend_comes_after_the_first(order):
    issue_apart(order, 1, end=100)
    issue_apart(order, 2, end=110)
    order.wait(110, SIDE)

    assert ({SIDE}, {SIDE}) == (behind(order, 1), behind(order, 2))


def test_of_a_call_in_a_batch_nothing_is_known(order):
    order.begin_issue(DEFAULT)

    assert not order.end_issue(CALL)
    assert not order.end_issue(CALL)  # nor of one that was not announced


def test_what_is_over_when_a_thread_has_waited(order):
    issue_apart(order, 1, end=100)
    issue_here(order, 2)
    order.record(1, DEFAULT)
    order.wait(100, SIDE)

    assert {2} == order.over_with_stream(DEFAULT)
    assert {1} == order.over_with_stream(SIDE)
    assert {2} == order.over_with_event(1)
    assert {1, 2} == order.over_with_device()


def test_only_what_is_kept_is_known(order):
    issue_apart(order, 1, end=100)
    issue_apart(order, 2, end=110)
    order.wait(110, SIDE)

    order.keep({2})

    assert (set(), {SIDE}) == (behind(order, 1), behind(order, 2))
    assert {2} == order.over_with_device()
