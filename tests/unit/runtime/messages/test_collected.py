"""What two processes have collected under one id, and one order of sets for all of them."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from disttest.model import WorldShape
from disttest.options.environment import hash_seed
from disttest.runtime.messages.collected import describe_collected, describe_difference, describe_extra


def item(nodeid, **params):
    return SimpleNamespace(nodeid=nodeid, callspec=SimpleNamespace(params=params))


def test_parameters_are_told_without_addresses_and_without_the_world():
    shape = WorldShape(size=2, backend="gloo")
    items = [
        item("a", x=object(), _shape=shape),
        item("b", x="t", y=Mock(name="m")),
        SimpleNamespace(nodeid="c"),
    ]

    assert {"a": "x=<object object>", "b": "x='t', y=<Mock name='m'>", "c": ""} == describe_collected(items)


@pytest.mark.parametrize(
    ("mine", "first", "told"),
    [
        ({"t": "x=1"}, {"t": "x=1"}, ""),
        (
            {"t": "x=1"},
            {"t": "x=2"},
            "it did not collect the same test as rank 0: it has x=1, rank 0 has x=2",
        ),
        (
            {},
            {"t": ""},
            "it did not collect the same test as rank 0: it has not collected it, rank 0 has no parameters",
        ),
        ({}, {}, "it has not collected this test"),
    ],
)
def test_a_difference_is_shown(mine, first, told):
    assert told == describe_difference("t", mine, first, "rank 0")


@pytest.mark.parametrize(
    ("given", "seed", "expected"),
    [(None, 0, "0"), ("random", 7, "7"), ("42", 7, "42"), (None, 2**32 + 3, "3")],
)
def test_the_hash_seed_is_the_users_else_that_of_the_run(monkeypatch, given, seed, expected):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONHASHSEED", given)

    assert {"PYTHONHASHSEED": expected} == hash_seed(seed)


def test_tests_that_one_process_alone_has_are_told():
    mine = {"a": "", "b": "", "c": "", "d": "", "e": ""}

    assert "" == describe_extra({"a": ""}, mine, "rank 0")
    assert "it collected 1 test that rank 0 did not: b" == describe_extra(
        {"a": "", "b": ""}, {"a": ""}, "rank 0"
    )
    assert "it collected 4 tests that rank 0 did not: b, c, d …" == describe_extra(mine, {"a": ""}, "rank 0")
