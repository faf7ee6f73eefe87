"""What the tool in a rank reports of a test, in words that can be compared, without a group that it could watch."""

from __future__ import annotations

import torch

from disttest.extras.chaos.case import ChaosCase, Contract
from disttest.extras.chaos.in_rank import ChaosTool, numbers_of


def _words(value: object) -> str:
    return numbers_of([("loss", value)])["loss"]


def test_a_few_numbers_are_shown_and_many_told_by_their_digest() -> None:
    many = torch.arange(100.0)

    assert _words(torch.tensor([1.0, 0.5])) == "[1.0, 0.5]"
    assert _words(many).startswith("float32[100] with digest ")
    assert _words(many) == _words(many.clone())
    assert _words(many) != _words(many + 1e-5)


def test_a_tensor_is_its_values_however_they_lie() -> None:
    square = torch.arange(100.0).reshape(10, 10)

    assert _words(square.t()) == _words(square.t().contiguous()) != _words(square)
    assert _words(square.to_sparse()) == _words(square)


def test_a_value_that_cannot_be_told_says_so() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no words")

    assert _words(Broken()) == "<Broken whose repr raises ValueError>"


def told_of(error: BaseException) -> list[str]:
    tool = ChaosTool(ChaosCase(contract=Contract()), rank=0, announce=lambda _at_s: None)
    return list(tool.report((), error).raised)


def raised_while_handling(error: Exception, handled: Exception, **how: Exception | None) -> Exception:
    """The first, as Python would leave it to whoever catches it; ``cause``: as with ``raise … from``."""
    try:
        try:
            raise handled
        except Exception:
            if "cause" in how:
                raise error from how["cause"]
            raise error  # noqa: B904 - the very chain that is wanted
    except Exception as caught:
        return caught


def test_an_error_is_told_with_the_one_in_whose_handling_it_was_raised():
    error = raised_while_handling(KeyError(1), RuntimeError("Connection closed by peer"))
    assert ["KeyError: 1", "RuntimeError: Connection closed by peer"] == told_of(error)


def test_what_was_hidden_on_purpose_stays_hidden():
    error = raised_while_handling(KeyError(1), RuntimeError("lost"), cause=None)
    assert ["KeyError: 1"] == told_of(error)


def test_a_member_raised_while_its_group_was_handled_ends_the_chain():
    member = ValueError("one")
    group = ExceptionGroup("both", [member])
    error = raised_while_handling(member, group)
    assert ["ValueError: one", "ExceptionGroup: both (1 sub-exception)"] == told_of(error)


def test_the_members_of_a_group_are_told():
    group = ExceptionGroup("both", [ValueError("one"), raised_while_handling(OSError("two"), KeyError(3))])
    assert [
        "ExceptionGroup: both (2 sub-exceptions)",
        "ValueError: one",
        "OSError: two",
        "KeyError: 3",
    ] == told_of(group)


def test_errors_that_are_each_other_s_cause_are_told_once():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert ["ValueError: first", "ValueError: second"] == told_of(first)


def test_what_has_no_text_is_reported_all_the_same():
    class Odd(Exception):
        def __str__(self):
            raise ValueError

    error = Odd()
    error.__cause__ = RuntimeError("Connection closed by peer")
    tool = ChaosTool(ChaosCase(contract=Contract()), rank=0, announce=lambda _at_s: None)

    seen = tool.report([(Odd(), 1)], error)

    assert 2 == len(seen.raised)
    assert "RuntimeError: Connection closed by peer" == seen.raised[1]
    assert ["1"] == [*seen.numbers.values()]
