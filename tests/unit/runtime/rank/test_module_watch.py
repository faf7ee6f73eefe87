"""What a test leaves in its modules and classes is noticed, whoever's they are but a library's."""

import json
import sys
import types
import warnings

import pytest

from disttest.plugins.launching_classes.inheritance import ModuleWatch, Numbers

STATE = 1
MEMBERS = {"a": 1}


class Unequal:
    def __eq__(self, other):
        raise ValueError("no truth in it")

    __hash__ = None


HOLDS = Unequal()


@pytest.fixture
def watch():
    return ModuleWatch()


def here(name):
    return f"{__name__}.{name}"


def test_nothing_has_changed(watch):
    assert "" == watch.changed()


def test_a_global_that_is_another_one(watch, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "STATE", 2)

    assert here("STATE") == watch.changed()


def test_a_global_that_is_new_or_gone(watch, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "NEW", None, raising=False)
    assert here("NEW") == watch.changed()

    monkeypatch.undo()
    monkeypatch.delattr(sys.modules[__name__], "STATE")
    assert here("STATE") == watch.changed()


def test_the_content_of_a_global(watch, monkeypatch):
    monkeypatch.setitem(MEMBERS, "b", 2)

    assert here("MEMBERS") == watch.changed()


def test_a_value_that_cannot_be_compared_is_another_one(watch, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "HOLDS", Unequal())

    assert here("HOLDS") == watch.changed()


def test_a_warning_is_no_change(watch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("noted in the module by Python", stacklevel=1)

    assert "" == watch.changed()


def test_libraries_are_not_watched(watch, monkeypatch):
    monkeypatch.setattr(json, "one_more", 1, raising=False)

    assert "" == watch.changed()


def test_numbers_of_classes_in_torchs_modules_are_put_back(monkeypatch):
    module = types.ModuleType("torch.testing.of_a_suite")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.Barrier = type("Barrier", (), {"__module__": module.__name__, "number": 0, "name": "a", "gone": 1})
    module.Suite = type("Suite", (), {"__module__": module.__name__})
    module.Foreign = type("Foreign", (), {"__module__": "elsewhere", "number": 0})
    numbers = Numbers([module.Suite, Unequal])
    module.Barrier.number, module.Barrier.name, module.Foreign.number = 3, "b", 4
    del module.Barrier.gone

    numbers.put_back()

    assert (0, "b", 1, 4) == (
        module.Barrier.number,
        module.Barrier.name,
        module.Barrier.gone,
        module.Foreign.number,
    )
