"""Tests that are run several times, and those that failed once more."""

import pytest

from disttest.model import Outcome

SUITE = """
    import os
    import unittest
    from pathlib import Path

    import pytest
    import torch

    SEEDS = Path(__file__).parent / "seeds"

    @pytest.mark.world_size(2)
    def test_ranks(world):
        if world.rank == 0:
            SEEDS.mkdir(exist_ok=True)
            (SEEDS / str(torch.initial_seed())).touch()

    class TestOwn(unittest.TestCase):
        def test_method(self):
            pass

    @pytest.mark.parametrize("value", [1])
    def test_until_the_file_is_there(value, tmp_path):
        assert not list(tmp_path.iterdir())
        count = Path(__file__).parent / "count"
        count.write_text(count.read_text() + "x" if count.exists() else "x")
        assert len(count.read_text()) != 2
"""
COLLECTED_BY_RANKS = """
    import threading

    import pytest

    threading.Thread(target=threading.Event().wait, daemon=True).start()

    @pytest.mark.world_size(2)
    def test_beside_a_thread(world):
        pass
"""


def names(ended):
    return [outcome.test.nodeid.partition("::")[2] for outcome in ended.run.tests]


@pytest.mark.slow("repeats each test three times, some in new interpreters")
def test_each_runs_so_often_and_the_failed_one_runs_alone_afterwards(lab):
    lab.write(test_suite=SUITE, test_thread=COLLECTED_BY_RANKS)

    ended = lab.run("run", "test_suite.py", "test_thread.py", "--repeat", "3")
    assert 1 == ended.exit_code, ended.output
    once = [
        "test_ranks[2xgloo]",
        "TestOwn::test_method",
        "test_until_the_file_is_there[1]",
        "test_beside_a_thread[2xgloo]",
    ]
    assert sorted(name + number for name in once for number in ("", "#2", "#3")) == sorted(names(ended))
    assert ["test_until_the_file_is_there[1]#2"] == [
        bad.test.nodeid.partition("::")[2] for bad in ended.run.bad
    ]
    assert 3 == len(list((lab.folder / "seeds").iterdir()))
    assert "repeat: disttest run 'test_suite.py::test_until_the_file_is_there[1]' --repeat 3" in ended.output

    again = lab.run("run", ".", "--lf", "-x", "--repeat", "2")
    assert ["test_until_the_file_is_there[1]", "test_until_the_file_is_there[1]#2"] == names(again)
    assert 0 == again.exit_code, again.output
    (lab.folder / "count").write_text("x")
    stopped = lab.run("run", "test_suite.py", "-k", "file_is_there", "--repeat", "until-fail")
    assert 100 == len(stopped.run.tests)
    assert [Outcome.FAILED, Outcome.NOT_RUN] == [outcome.final.outcome for outcome in stopped.run.tests][:2]


REPEATS = """
    from _pytest.runner import runtestprotocol

    # As pytest-rerunfailures 16.1: an attempt that is repeated has no report of its tear-down.
    def pytest_runtest_protocol(item, nextitem):
        where = {"nodeid": item.nodeid, "location": item.location}
        is_again = True
        while is_again:
            is_again = False
            item.ihook.pytest_runtest_logstart(**where)
            for report in runtestprotocol(item, nextitem=nextitem, log=False):
                is_again = report.failed
                report.outcome = "rerun" if is_again else report.outcome
                item.ihook.pytest_runtest_logreport(report=report)
                if is_again:
                    break
            item.ihook.pytest_runtest_logfinish(**where)
        return True
"""


def test_a_repeated_attempt_without_a_tear_down_is_an_attempt(lab):
    lab.write(
        conftest=REPEATS,
        test_flaky="""
        tried = []

        def test_flaky():
            tried.append(1)
            assert len(tried) == 2
    """,
    )

    ended = lab.run("test_flaky.py")

    assert ended.exit_code == 0, ended.output
    (test,) = ended.run.tests
    assert [Outcome.FAILED, Outcome.PASSED] == [attempt.outcome for attempt in test.attempts]


def test_a_setting_alone_loses_no_test_that_has_the_id_of_another_one(lab):
    lab.write(
        conftest="""
        def pytest_collection_modifyitems(items):
            items *= 3  # as pytest-flakefinder does
    """,
        test_plain="""
        def test_plain():
            pass
    """,
    )

    ended = lab.pytest("test_plain.py")

    assert "3 passed" in ended.output
    assert len(ended.run.tests) == 3
