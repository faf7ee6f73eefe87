"""Files that skip themselves while they are collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttest.model import Outcome
from disttest.runtime.controller.collect import describe_skipped

ROOT = Path("/project")


@pytest.mark.parametrize(
    ("longrepr", "line", "reason"),
    [
        (("/project/a/test_x.py", 3, "Skipped: no engine"), 3, "no engine"),
        (("/project/a/helper.py", 7, "Skipped: no engine"), 1, "no engine"),
        (("/project/a/test_x.py", 3, "unittest.case.SkipTest: no engine"), 3, "no engine"),
        (("/project/a/test_x.py", 3, "Skipped"), 3, "Skipped"),
        ("a plugin's text", 1, "a plugin's text"),
        (None, 1, ""),
    ],
)
def test_the_reason_is_without_the_name_of_the_exception(longrepr, line: int, reason: str) -> None:
    report = pytest.CollectReport("a/test_x.py", "skipped", longrepr, [])

    test, result = describe_skipped(report, ROOT)

    assert (test.file, test.line, test.suite) == ("a/test_x.py", line, "a")
    assert (result.outcome, result.phase, result.message) == (Outcome.SKIPPED, "collect", reason)


@pytest.mark.parametrize(
    ("nodeid", "classname", "name"),
    [("a/test_x.py", "", "a.test_x"), ("a/test_x.py::Cases", "a.test_x", "Cases")],
)
def test_names_are_those_of_pytest_in_junit(nodeid: str, classname: str, name: str) -> None:
    test, _ = describe_skipped(pytest.CollectReport(nodeid, "skipped", None, []), ROOT)

    assert (test.classname, test.name) == (classname, name)


@pytest.mark.parametrize(
    ("nodeid", "name", "suite"),
    [
        ("test_x.py", "test_x", "test_x"),
        ("gone/test_x.py", "gone.test_x", "gone"),
        ("gone/test_x.py::TestA", "TestA", "gone"),
        ("gone/deep.2", "gone.deep.2", "gone/deep.2"),
        (".", ".", "."),
        ("", ".", "."),
    ],
)
def test_each_is_in_the_suite_that_its_tests_would_be_in(
    tmp_path: Path, nodeid: str, name: str, suite: str
) -> None:
    (tmp_path / "gone" / "deep.2").mkdir(parents=True)
    (tmp_path / "gone" / "test_x.py").touch()
    where = (str(tmp_path / "conftest.py"), 3, "Skipped: no engine")

    test, result = describe_skipped(pytest.CollectReport(nodeid, "skipped", where, []), tmp_path)

    assert (nodeid or ".", name, suite) == (test.nodeid, test.name, test.suite)
    assert test.nodeid == result.nodeid
    assert (Outcome.SKIPPED, "collect", "no engine") == (result.outcome, result.phase, result.message)
