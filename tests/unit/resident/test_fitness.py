"""What makes a resident parent unfit: everything that a new process would have otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from disttest.extras.resident.fitness import Loaded, differing, foreign_modules, variables_that_matter


def test_every_variable_counts_but_those_that_nothing_reads_meanwhile():
    harmless = {
        "TERM": "xterm",
        "SSH_TTY": "1",
        "DISTTEST_MASK": "x",
        "PYTEST_ADDOPTS": "-x",
        "_": "x",
    }
    known = {"OMP_NUM_THREADS": "2", "TERMINFO": "x", "CI": "1", "PYTHONPATH": "x"}

    assert known == variables_that_matter({**harmless, **known})


def test_what_differs_is_named_without_values():
    assert ["A", "C", "D"] == differing({"A": "1", "B": "2", "C": "3"}, {"A": "0", "B": "2", "D": "4"})


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder behind another one on the path, with a module that is loaded."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    (tmp_path / "second" / "loaded_for_a_test.py").write_text("VALUE = 1\n")
    __import__("loaded_for_a_test")
    yield tmp_path
    del sys.modules["loaded_for_a_test"]


def test_a_file_that_was_saved_or_removed_is_named(packages: Path):
    loaded, file = Loaded(), packages / "second" / "loaded_for_a_test.py"
    assert "" == loaded.changed()
    os.utime(file, ns=(1, 1))
    assert str(file) == loaded.changed()
    loaded = Loaded()
    file.unlink()
    assert str(file) == loaded.changed()


@pytest.mark.parametrize("name", ["loaded_for_a_test.py", "loaded_for_a_test/__init__.py"])
def test_a_module_that_would_be_found_first_is_named(packages: Path, name: str):
    loaded = Loaded()
    (packages / "first" / "loaded_for_a_test").mkdir()
    assert "" == loaded.changed()  # a folder alone is found last
    (packages / "first" / name).write_text("VALUE = 2\n")
    assert name.partition("/")[0] == Path(loaded.changed()).name


def test_modules_of_the_users_are_found(packages: Path):
    assert ["loaded_for_a_test"] == foreign_modules(packages, [])
    assert [] == foreign_modules(packages, [packages / "second"])
