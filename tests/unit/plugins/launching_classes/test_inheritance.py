"""Living ranks are as new ones would be only while what they have inherited is unchanged."""

import decimal
import sys
import types

import pytest

from disttest.plugins.launching_classes.inheritance import Inheritance


class Holder:
    value = 1
    values = [1]


@pytest.fixture
def inheritance():
    Inheritance([Holder])  # what a first look imports
    return Inheritance([Holder])


def test_nothing_has_changed(inheritance):
    assert "" == inheritance.changed()


def test_variables_of_the_environment_are_told_once(inheritance, monkeypatch):
    assert ("", ()) == (inheritance.changed(), inheritance.take_variables())

    monkeypatch.setenv("ONE_MORE", "1")
    assert ("", ((b"ONE_MORE", b"1"),)) == (inheritance.changed(), inheritance.take_variables())
    assert ("", ()) == (inheritance.changed(), inheritance.take_variables())

    monkeypatch.setenv("ONE_MORE", "\udcff")  # no text
    inheritance.changed()
    assert ((b"ONE_MORE", b"\xff"),) == inheritance.take_variables()

    monkeypatch.delenv("ONE_MORE")
    inheritance.changed()
    assert ((b"ONE_MORE", None),) == inheritance.take_variables()


def test_the_folder(inheritance, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert "directory" == inheritance.changed()


def test_an_import(inheritance, monkeypatch):
    monkeypatch.setitem(sys.modules, "one_more_module", types.ModuleType("one_more_module"))

    assert "import of one_more_module" == inheritance.changed()


def test_an_attribute_of_the_class(inheritance, monkeypatch):
    monkeypatch.setattr(Holder, "value", 2)

    assert "Holder.value" == inheritance.changed()


def test_a_setting_of_the_standard_library(inheritance):
    with decimal.localcontext(prec=3):
        assert "standard library" == inheritance.changed()
