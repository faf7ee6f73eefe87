"""The resolver and torch's log are as they were when the connection is there, and nothing is needed of either."""

import ctypes

import pytest

from disttest.host import name_service
from disttest.host.name_service import without_name_service


@pytest.fixture
def log_level(monkeypatch):
    level = ctypes.c_int(1)
    monkeypatch.setattr(name_service, "_log_level", lambda: level)
    return level


def test_no_question_inside_and_as_before_behind_it(log_level):
    resolver = name_service._resolver()
    before = resolver.retry
    assert before > 0

    with pytest.raises(ZeroDivisionError), without_name_service():
        assert (0, 2) == (resolver.retry, log_level.value)
        _ = 1 / 0

    assert (before, 1) == (resolver.retry, log_level.value)


def test_a_log_that_says_even_less_is_left_so(log_level):
    log_level.value = 3

    with without_name_service():
        assert 3 == log_level.value

    assert 3 == log_level.value


def test_of_two_threads_the_one_that_has_quietened_the_log_gives_it_its_voice_back(log_level):
    first, second = without_name_service(), without_name_service()
    with first:
        second.__enter__()
    assert 1 == log_level.value

    second.__exit__(None, None, None)

    assert 1 == log_level.value


def test_nothing_changes_where_the_library_has_no_such_thing(monkeypatch):
    def lacks():
        raise AttributeError("__res_state")

    before = name_service._resolver().retry
    monkeypatch.setattr(name_service, "_resolver", lacks)

    with without_name_service():
        pass

    monkeypatch.undo()
    assert before == name_service._resolver().retry
