"""Whether a dictionary was modified since the last question."""

from __future__ import annotations

import sys
import types

import pytest

from disttest.plugins.state_facets import dict_version, monkeypatches
from disttest.plugins.state_facets.dict_version import DictVersion


def set_new(owner):
    owner.added = 1


def set_other(owner):
    owner.value = "other"


def delete(owner):
    del owner.value


def set_through_vars(owner):
    vars(owner)["value"] = "other"


def owner_of_kind(kind):
    if kind == "class":
        return type("Owner", (), {"value": 0})
    owner = types.ModuleType("owner")
    owner.value = 0
    return owner


@pytest.mark.parametrize(
    ("kind", "modify"),
    [
        *(("module", modify) for modify in (set_new, set_other, delete, set_through_vars)),
        *(("class", modify) for modify in (set_new, set_other, delete)),
    ],
)
def test_each_modification_is_noticed_once(kind, modify):
    owner = owner_of_kind(kind)
    version = DictVersion(vars(owner))
    assert version.may_have_changed(), "the first answer is yes"
    assert version.may_have_changed() is not dict_version.is_numbered()

    modify(owner)

    assert version.may_have_changed()
    assert version.may_have_changed() is not dict_version.is_numbered()


def test_without_numbers_every_dictionary_may_have_changed(monkeypatch):
    monkeypatch.setattr(dict_version, "is_numbered", lambda: False)
    version = DictVersion({})

    assert version.may_have_changed()
    assert version.may_have_changed()


def test_a_replaced_function_is_named_until_it_is_restored():
    owner = types.ModuleType("owner")
    owner.function = len
    watched = monkeypatches._Watched("owner", owner)
    assert [] == watched.replaced()

    owner.function = max
    assert [(("owner", "function"), max)] == watched.replaced()
    assert [(("owner", "function"), max)] == watched.replaced(), "and not forgotten by the next look"

    watched.restore("function")
    assert [] == watched.replaced()


def test_a_replaced_module_is_named_until_it_is_restored(monkeypatch):
    monkeypatches._replaced_modules()
    original = sys.modules["shutil"]
    other = types.ModuleType("shutil")
    monkeypatch.setitem(sys.modules, "shutil", other)

    assert other is monkeypatches._replaced_modules()["shutil"]
    assert other is monkeypatches._replaced_modules()["shutil"]

    sys.modules["shutil"] = original
    assert "shutil" not in monkeypatches._replaced_modules()
