"""Exceptions are described without calling anything that belongs to the test."""

import pytest

from disttest.runtime.messages.raised import describe_held_back, describe_raised, first_exit, stop_of


class Rude:
    def __repr__(self):
        raise AssertionError("it was called")

    __str__ = __repr__


class RudeText(str):
    __slots__ = ()
    __str__ = __repr__ = Rude.__repr__


class RudeError(Exception):
    __str__ = __repr__ = Rude.__repr__
    args = property(Rude.__repr__)
    __traceback__ = property(Rude.__repr__)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("shard 1"), "ValueError: shard 1"),
        (KeyError("layer.7"), "KeyError: 'layer.7'"),
        (OSError(2, "No such file"), "FileNotFoundError: [Errno 2] No such file"),
        (ValueError(("a", [1, 2.5, None])), "ValueError: ('a', [1, 2.5, None])"),
        (AssertionError(), "AssertionError"),
        (RudeError("its arguments", Rude()), "RudeError: its arguments"),
        (ValueError(Rude()), "ValueError"),
        (ValueError([Rude()], "and more"), "ValueError: and more"),
        (KeyError(RudeText("key")), "KeyError"),
        (ExceptionGroup("both", [RudeError()]), "ExceptionGroup: both (1 sub-exception)"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_a_description_has_the_text_only_if_reading_it_calls_nothing_of_the_test(error, message):
    assert describe_raised(error).message == message


def test_the_place_is_the_innermost_line_of_the_test_and_the_traceback_has_the_chain():
    try:
        try:
            raise RudeError("first")
        except RudeError:
            raise ValueError("second") from None
    except ValueError as caught:
        hidden = describe_raised(caught)
    try:
        try:
            raise RudeError("first")
        except RudeError as first:
            raise ValueError("second") from first
    except ValueError as caught:
        chained = describe_raised(caught)

    assert chained.place.startswith("test_raised.py:")
    assert chained.details.index("RudeError: first") < chained.details.index("ValueError: second")
    assert 'raise ValueError("second") from first' in chained.details
    assert "RudeError: first" not in hidden.details


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (pytest.exit.Exception("enough", 77), 77),
        (pytest.exit.Exception("enough"), 2),
        (pytest.exit.Exception("enough", 0), 2),
        (KeyboardInterrupt("enough"), 2),
    ],
)
def test_the_end_of_the_run_has_a_reason_and_a_code_that_is_never_green(error, code):
    stop = stop_of(error)

    assert stop is not None
    assert (stop.exit_code, stop.reason.endswith(": enough")) == (code, True)


def test_other_exceptions_do_not_end_the_run():
    assert stop_of(SystemExit(3)) is stop_of(ValueError()) is None


def test_the_exit_that_pytest_raises_once_more_is_that_of_the_test():
    again = pytest.exit.Exception("enough")
    again.__context__ = pytest.exit.Exception("enough", 77)

    assert stop_of(first_exit(again)) == stop_of(again.__context__)


def raised_in_finally(first, second):
    try:
        try:
            raise first
        finally:
            raise second
    except type(second) as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "held_back"),
    [
        (raised_in_finally(KeyError("a"), RuntimeError("Connection closed by peer")), "KeyError: 'a'"),
        (raised_in_finally(KeyError("a"), OSError("disk full")), None),
        (raised_in_finally(StopIteration(), RuntimeError("Connection closed by peer")), None),
        (RuntimeError("Connection closed by peer"), None),
    ],
)
def test_a_lost_peer_in_a_finally_block_holds_back_the_exception_of_the_test(error, held_back):
    described = describe_held_back(error)

    assert (described.message if described else None) == held_back


def test_causes_that_form_a_cycle_end():
    first, second = RuntimeError("Connection reset by peer"), RuntimeError("Connection closed by peer")
    first.__cause__, second.__cause__ = second, first

    assert describe_held_back(first) is None
    assert describe_raised(first).details.count("Connection") == 2
