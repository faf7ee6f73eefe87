"""Whether a caller throws away what a function returns, in the bytecode of this Python."""

from __future__ import annotations

import sys

import pytest

from disttest.extras.sanitizers.order.order_recorder import is_thrown_away


def call(*_args: object, **_keywords: object) -> bool:
    """Stands for an asynchronous call: whether its caller throws the result away."""
    caller = sys._getframe(1)
    return seen.append(is_thrown_away(caller.f_code, caller.f_lasti))


seen: list[bool] = []


def popped():
    call(1, async_op=True)


def popped_of_many():
    call(*[1], async_op=True)


def popped_in_a_loop():
    for _ in range(2):
        call()


def stored_and_never_read():
    work = call()  # noqa: F841


def waited():
    work = call()
    work and work.wait()


def waited_in_one_branch():
    work = call()
    if not popped:
        work.wait()


def returned():
    return call()


def kept_in_a_list():
    works = [call()]
    works.append(call())


def handed_on():
    print(call(), end="")


def shared_with_an_inner_function():
    work = call()
    return lambda: work


@pytest.mark.parametrize("function", [popped, popped_of_many, popped_in_a_loop, stored_and_never_read])
def test_it_is_thrown_away(function):
    seen.clear()
    function()

    assert set(seen) == {True}


@pytest.mark.parametrize(
    "function",
    [waited, waited_in_one_branch, returned, kept_in_a_list, handed_on, shared_with_an_inner_function],
)
def test_it_may_be_waited_for(function):
    seen.clear()
    function()

    assert set(seen) == {False}
