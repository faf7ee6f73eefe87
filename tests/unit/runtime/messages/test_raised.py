"""Exceptions are described without calling anything that belongs to the test."""

import pytest

from disttest.runtime.messages.raised import describe_raised


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
