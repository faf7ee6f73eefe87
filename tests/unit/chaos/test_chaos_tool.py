"""What the tool in a rank reports of a test, without a group that it could watch."""

from __future__ import annotations

from disttest.extras.chaos.case import ChaosCase, Contract
from disttest.extras.chaos.in_rank import ChaosTool


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
