"""A test that forks, and whose copy comes back into pytest: the results are those of the original."""

from __future__ import annotations

import json

import pytest

FORKS = """
    import multiprocessing
    import os
    import pytest

    def wait_for(pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @pytest.fixture
    def forking():
        pid = os.fork()
        if pid:
            assert wait_for(pid) == 0
        yield

    def test_of_a_fixture(forking):
        pass

    def test_original_fails():
        if (pid := os.fork()) == 0:
            return
        assert wait_for(pid) == 0
        assert False, "in the original"

    def test_copy_fails():
        if (pid := os.fork()) == 0:
            assert False, "in the copy"
        assert wait_for(pid) == 1

    def test_patched(monkeypatch):
        me = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: me)
        if (pid := os.fork()) == 0:
            return
        assert wait_for(pid) == 0

    def test_multiprocessing():
        process = multiprocessing.get_context("fork").Process(target=print)
        process.start()
        process.join()
        assert process.exitcode == 0

    def test_last():
        pass
"""
RANKS = """
    import os
    import pytest

    @pytest.mark.world_size(2)
    def test_copy_of_a_rank_fails():
        if (pid := os.fork()) == 0:
            assert False, "in the copy"
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
"""
CONFTEST = """
    import os

    def fork():
        if pid := os.fork():
            os.waitpid(pid, 0)

    fork()

    def pytest_sessionstart():
        fork()

    def pytest_collection_modifyitems():
        fork()

    def pytest_runtest_logreport():
        fork()

    def pytest_runtest_logfinish():
        fork()

    def pytest_sessionfinish():
        fork()
"""
FORKS_AT_IMPORT = """
    import os

    if pid := os.fork():
        os.waitpid(pid, 0)

    def test_passes():
        pass

    def test_fails():
        assert False, "in the original"
"""
OUTCOMES = {
    "test_of_a_fixture": "passed",
    "test_original_fails": "failed",
    "test_copy_fails": "passed",
    "test_patched": "passed",
    "test_multiprocessing": "passed",
    "test_last": "passed",
}


def outcomes(ended):
    tests = json.loads((ended.results / "results.json").read_text())["tests"]
    return {test["test"]["name"]: [attempt["outcome"] for attempt in test["attempts"]] for test in tests}


def check(ended):
    assert {name: [outcome] for name, outcome in OUTCOMES.items()} == outcomes(ended)
    assert 1 == ended.exit_code
    assert 1 == len(list(ended.junit().iter("failure")))


@pytest.mark.parametrize("options", [(), ("--isolate-files",)], ids=["in the pytest process", "contained"])
def test_the_copy_of_an_ordinary_test_writes_no_results(lab, options):
    ended = lab.write(test_forks=FORKS).run("run", "test_forks.py", *options)

    check(ended)
    assert 1 == ended.output.count("failed: 1 failed, 5 passed")
    if not options:
        assert (
            "a fork that test_forks.py::test_copy_fails made has failed: AssertionError: in the copy"
            in ended.output
        )


def test_the_copy_of_a_rank_ends_with_the_code_of_its_failure(lab):
    ended = lab.write(test_ranks=RANKS).run("run", "test_ranks.py")

    assert 0 == ended.exit_code, ended.output


def test_under_plain_pytest_the_copy_neither_reports_nor_writes(lab):
    ended = lab.write(test_forks=FORKS).pytest("test_forks.py", "--junitxml=theirs.xml")

    check(ended)
    assert 1 == ended.output.count("1 failed, 5 passed")
    assert 1 == lab.run("merge", "results", "--results", "merged").exit_code


def test_a_copy_that_a_hook_or_an_import_has_made_leaves(lab):
    ended = lab.write(conftest=CONFTEST, test_imports=FORKS_AT_IMPORT).run("run", "test_imports.py")

    assert {"test_passes": ["passed"], "test_fails": ["failed"]} == outcomes(ended)
    assert 1 == ended.exit_code
    for once in ("test session starts", "collected 2 items", "failed: 1 failed, 1 passed"):
        assert 1 == ended.output.count(once), ended.output
