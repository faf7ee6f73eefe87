"""The keys in the store of a world are listed again only where they may be others: the answer is dear."""

from types import SimpleNamespace

import pytest

from disttest.plugins.state_facets import process_groups
from disttest.plugins.state_facets.process_groups import list_keys_anew


class Group:
    """Stands for a default group."""


@pytest.fixture
def rank(monkeypatch):
    """What the rank has done, and how often the keys were listed."""
    done = SimpleNamespace(calls=0, children=0, listed=0, group=Group())

    def keys():
        done.listed += 1
        return {}

    there = {"is_available": lambda: True, "is_initialized": lambda: True}
    monkeypatch.setattr(process_groups, "dist", SimpleNamespace(**there, group=SimpleNamespace()))
    monkeypatch.setattr(process_groups, "_keys_of_tests", keys)
    monkeypatch.setattr(process_groups, "store_calls", lambda: done.calls)
    monkeypatch.setattr(process_groups.resource, "getrusage", lambda _: done.children)
    monkeypatch.setattr(process_groups.threading, "active_count", lambda: 1)
    list_keys_anew()
    yield done
    list_keys_anew()


def look(rank):
    process_groups.dist.group.WORLD = rank.group
    process_groups._store_keys()
    return rank.listed


def test_once_while_nobody_calls_the_store(rank):
    assert [1, 1, 1] == [look(rank) for _ in range(3)]


@pytest.mark.parametrize("what", ["calls", "children"])
def test_again_after_a_call_and_after_a_child(rank, what):
    look(rank)
    setattr(rank, what, 1)

    assert [2, 2] == [look(rank) for _ in range(2)]


def test_again_for_another_group(rank):
    look(rank)
    rank.group = Group()

    assert 2 == look(rank)


def test_again_when_other_ranks_count(rank):
    look(rank)
    list_keys_anew()

    assert 2 == look(rank)


def test_always_where_calls_are_not_seen(rank):
    rank.calls = None

    assert [1, 2] == [look(rank) for _ in range(2)]
