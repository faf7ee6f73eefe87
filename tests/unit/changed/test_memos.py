"""Functions that may keep a result for later calls."""

from __future__ import annotations

import sys
import textwrap

import pytest

from disttest.extras.changed.memos import remembers

SOURCE = """
import functools
import logging

KEPT, LIST, logger = {}, [], logging.getLogger()

class Base:
    table = {}

class Box(Base):
    value = None

    def __new__(cls):
        cls.made = probe()
        return super().__new__(cls)

    def item(self):
        self.table[1] = probe()

    def update(self):
        self.table.update(a=probe())

    def own(self):
        self.value = probe()
        logger.info("%s", KEPT)

    @functools.cached_property
    def size(self): probe()

    @property
    @functools.cache
    def both(self): probe()

    @staticmethod
    @functools.cache
    def static(): probe()

box = Box()

@functools.lru_cache(maxsize=None)
def cached(): probe()
def sets_global():
    global one
    one = probe()
def item(): KEPT["x"] = probe()
def alias():
    kept = KEPT
    kept["x"] = probe()
def appends(): LIST.append(probe())
def attribute(): box.value = probe()
def of_function(): of_function.value = probe()
def enclosing():
    kept = {}
    def inner(): kept[1] = probe()
    inner()
def nonlocal_variable():
    kept = None
    def inner():
        nonlocal kept
        kept = probe()
    inner()

def wrapped(): probe()
wrapped.cache = {}
def documented(): probe()
documented._cached_doc, documented.cache_name = None, "a text"

def reads(): probe(), KEPT.get("x"), LIST
def own_list():
    found = []
    found.append(probe())
    found.extend(LIST)
def own_item():
    found = {}
    found[1] = probe()
"""


@pytest.fixture(scope="module")
def called() -> dict[str, object]:
    """The functions, and a list of the answers for those that call ``probe``."""
    answers: list[bool] = []
    space = {"probe": lambda: answers.append(remembers(sys._getframe(1))), "answers": answers}
    exec(compile(textwrap.dedent(SOURCE), "lib.py", "exec"), space)
    return space


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("Box()", True),
        ("box.item()", True),
        ("box.update()", True),
        ("box.size", True),
        ("box.both", True),
        ("Box.static()", True),
        ("cached()", True),
        ("sets_global()", True),
        ("item()", True),
        ("appends()", True),
        ("attribute()", True),
        ("of_function()", True),
        ("enclosing()", True),
        ("nonlocal_variable()", True),
        ("alias()", True),
        ("wrapped()", True),
        ("documented()", False),
        ("box.own()", False),
        ("reads()", False),
        ("own_list()", False),
        ("own_item()", False),
    ],
)
def test_a_function_may_keep_what_outlives_its_call(called, call, wanted):
    called["answers"].clear()
    eval(call, called)
    assert called["answers"] == [wanted]
