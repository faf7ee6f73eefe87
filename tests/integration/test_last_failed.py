"""``--last-failed`` after the tests have changed, and with the results of another machine or of a crash."""

from __future__ import annotations

import pytest
from lab import Lab

from disttest.model import Outcome

TESTS = """
    import pytest

    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.world_size(1)
    def test_ranks(world, number):
        assert number == 0

    def test_{name}():
        assert 0

    def test_good():
        pass
"""
BROKEN = "raise ImportError('broken')"


@pytest.fixture
def failed(lab: Lab) -> Lab:
    ended = lab.write(test_a=TESTS.format(name="old"), test_b="def test_b(): assert 0", test_c=BROKEN).run(
        "."
    )
    assert 2 == ended.exit_code, ended.output
    return lab


def names(ended) -> set[str]:
    return {test.test.nodeid for test in ended.run.tests}


def test_the_failed_tests_run_again(failed: Lab) -> None:
    ended = failed.write(test_c="def test_c(): pass").run(".", "--last-failed")

    ranks = {f"test_a.py::test_ranks[1xgloo-{number}]" for number in (1, 2)}
    assert ranks | {"test_a.py::test_old", "test_b.py::test_b", "test_c.py::test_c"} == names(ended), (
        ended.output
    )
    assert "cannot be found" not in ended.output


def test_a_test_that_was_renamed_and_a_file_that_is_gone_are_named(failed: Lab) -> None:
    (failed.folder / "test_b.py").unlink()
    source = TESTS.format(name="new").replace("[1, 2]", "[2, 3]")
    ended = failed.write(test_a=source, test_c="def test_c(): pass").run(".", "--last-failed")

    assert {"test_a.py::test_ranks[1xgloo-2]", "test_c.py::test_c"} == names(ended), ended.output
    note = "--last-failed: test_a.py::test_ranks[1xgloo-1] and 2 more failed before and cannot be found here"
    assert [each for each in ended.run.notes if note in each], ended.run.notes


def test_where_none_is_left_the_files_run(lab: Lab) -> None:
    lab.write(test_b="def test_b(): assert 0").run(".")
    ended = lab.write(test_b="def test_c(): pass").run(".", "--last-failed")

    assert 0 == ended.exit_code, ended.output
    assert {"test_b.py::test_c"} == names(ended)
    assert "cannot be found here: all tests of these files run" in " ".join(ended.output.split())


def test_after_a_crash_of_pytest_all_run(lab: Lab) -> None:
    lab.write(conftest="import os; os._exit(9)", test_b="def test_b(): pass").run(".")
    ended = lab.write(conftest="", test_b="def test_b(): pass").run(".", "--last-failed")

    assert Outcome.PASSED is ended.result("test_b").outcome, ended.output
    assert "the files of the tests that failed are gone: all tests run" in ended.output


def test_names_with_secrets_and_with_paths_are_found(lab: Lab) -> None:
    """The journal has them masked; `a/../b` in a parameter is no part of a path."""
    test = """
        import pytest

        @pytest.mark.parametrize("value", ["http://x.org/a/../b/", "swordfish"])
        def test_url(value):
            assert 0

        def test_good():
            pass
    """
    (lab.folder / "pytest.ini").write_text("[pytest]\n")
    (lab.folder / "sub").mkdir()
    lab.write(test_a=test)
    (lab.folder / "test_a.py").rename(lab.folder / "sub/test_a.py")
    lab.run("sub", DISTTEST_MASK="swordfish")
    ended = lab.run("sub", "--last-failed", DISTTEST_MASK="swordfish")

    assert 1 == ended.exit_code
    assert {"sub/test_a.py::test_url[http://x.org/a/../b/]", "sub/test_a.py::test_url[***]"} == names(ended)
    assert "cannot be found" not in ended.output
