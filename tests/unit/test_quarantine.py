"""tests/quarantine.toml: few known flaky tests, each with its cause, an owner and an end."""

from __future__ import annotations

import datetime
import io
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
TOOL = TESTS.parent / "tools" / "quarantine.py"
ENTRIES = tomllib.loads((TESTS / "quarantine.toml").read_text()).get("test", [])
MOST = 5


def test_there_are_few() -> None:
    assert len(ENTRIES) <= MOST, "repair one before another is added"


def test_each_names_a_test_its_cause_and_an_owner_and_has_not_expired() -> None:
    for entry in ENTRIES:
        check(entry)


def check(entry: dict[str, Any]) -> None:
    assert {"id", "cause", "owner", "expires"} == set(entry)
    file, _, rest = str(entry["id"]).partition("::")
    assert f"def {rest.rpartition('::')[2].partition('[')[0]}(" in (TESTS.parent / file).read_text()
    assert entry["expires"] >= datetime.date.today(), "it has expired: repair the test"  # noqa: DTZ011


def test_an_entry_that_has_expired_is_refused() -> None:
    entry = {"id": "tests/unit/test_quarantine.py::test_there_are_few", "cause": "a race", "owner": "me"}

    check(entry | {"expires": datetime.date(2100, 1, 1)})
    with pytest.raises(AssertionError, match="it has expired"):
        check(entry | {"expires": datetime.date(2020, 1, 1)})


def test_repeated_tests_are_told_with_their_cause_if_it_is_known(tmp_path, monkeypatch, capsys) -> None:
    known = tmp_path / "quarantine.toml"
    known.write_text(
        '[[test]]\nid = "tests/a.py::test_one"\ncause = "a race"\nowner = "me"\nexpires = 2100-01-01\n'
    )

    monkeypatch.setattr(sys, "argv", ["quarantine.py", str(known)])
    monkeypatch.setattr(sys, "stdin", io.StringIO("tests/a.py::test_one\ntests/a.py::test_two\n"))

    runpy.run_path(str(TOOL), run_name="__main__")

    told = capsys.readouterr().out
    assert "FLAKY (known, until 2100-01-01, me: a race): tests/a.py::test_one" == told.splitlines()[0]
    assert "FLAKY (failed once, passed by itself): tests/a.py::test_two" == told.splitlines()[1]
