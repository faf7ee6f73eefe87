from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from disttest.host.versions import OLDEST, too_old

ROOT = Path(__file__).parents[3]


def versions(**known):
    def version_of(name):
        if name not in known:
            raise PackageNotFoundError(name)
        return known[name]

    return version_of


@pytest.mark.parametrize("torch", ["2.9.0", "2.9.0a0+git123", "2.13.0+cpu", "3.0"])
def test_what_is_new_enough_is_no_word_worth(torch):
    assert too_old(versions(torch=torch, pytest="8.4.0")) == ""


def test_what_is_too_old_is_named_with_the_remedy():
    expected = "torch 2.5.1+cu124 is too old for disttest: install torch 2.9 or later"
    assert too_old(versions(torch="2.5.1+cu124", pytest="9.2.0")) == expected
    assert too_old(versions(pytest="8.1.2")).startswith("pytest 8.1.2 is too old")


def test_what_is_not_installed_is_not_old():
    assert too_old(versions(pytest="9.2.0")) == ""


def test_pip_is_told_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["torch"]]
    assert {f"{name}>={oldest}" for name, oldest in OLDEST.items()} <= set(asked)
