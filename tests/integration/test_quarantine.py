"""Tests in quarantine: failures, crashes and hangs of every kind of test do not fail the run until a date."""

from __future__ import annotations

import re

import pytest
from typed import check_page

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

TESTS = """
    import os
    import signal
    import time
    import unittest

    import pytest
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    def test_ordinary():
        assert False, "boom"

    @pytest.fixture
    def broken():
        raise ValueError("set-up")

    def test_set_up(broken):
        pass

    @pytest.mark.world_size(2)
    def test_raises(world):
        if world.rank == 1:
            raise ValueError("boom")

    @pytest.mark.world_size(2)
    def test_crashes(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)

    @pytest.mark.world_size(2)
    @pytest.mark.timeout(2)
    def test_hangs(world):
        while world.rank == 1:
            time.sleep(1)

    class TestOfTorch(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_in_class(self):
            assert self.rank == 0

    def test_passes():
        pass
"""
NAMES = (
    "test_ordinary",
    "test_set_up",
    "test_raises",
    "test_crashes",
    "test_hangs",
    "TestOfTorch::test_in_class",
)


def quarantine(*names: str, expires: str = "2999-01-01") -> str:
    fields = f'owner = "ann"\nreason = "races"\nexpires = {expires}\n'
    return "\n".join(f'[[test]]\ntest = "test_mine.py::{name}"\n{fields}' for name in names)


@pytest.mark.parametrize("options", [(), ("--isolate-files",)])
def test_failures_of_every_kind_do_not_count_and_are_shown(lab, options):
    lab.write(test_mine=TESTS)
    (lab.folder / "flaky.toml").write_text(quarantine(*NAMES, "test_passes"))
    ended = lab.run("run", "test_mine.py", *options)

    assert ended.exit_code == 0, ended.output
    outcomes = {test.test.nodeid.partition("::")[2].partition("[")[0]: test.final for test in ended.run.tests}
    assert {name for name, final in outcomes.items() if final.outcome is Outcome.XFAILED} == set(NAMES)
    assert all(
        outcomes[name].message.startswith("in quarantine until 2999-01-01 (ann: races): ") for name in NAMES
    )
    assert "killed by SIGSEGV" in outcomes["test_crashes"].message
    assert "boom" in outcomes["test_ordinary"].message
    assert "quarantine: 7 tests; the failures of 6 do not fail the run" in ended.output
    assert "7 tests; the failures of 6 do not fail the run" in (ended.results / "report.html").read_text()
    assert len(ended.junit().findall(".//skipped")) == 6


def test_what_has_expired_fails_the_run(lab):
    lab.write(test_mine=TESTS)
    (lab.folder / "other.toml").write_text(quarantine("test_ordinary", "test_raises", expires="2026-01-01"))
    ended = lab.run("run", "test_mine.py", "--quarantine", "other.toml", "-k", "ordinary or raises")

    assert ended.exit_code == 1
    assert len(re.findall(r"the quarantine of test_mine.py::\S+ ended on 2026-01-01", ended.output)) >= 2
    assert {test.final.outcome for test in ended.run.tests} == {Outcome.FAILED}


def test_a_bad_file_ends_the_run_before_a_test(lab):
    lab.write(test_mine=TESTS)
    (lab.folder / "flaky.toml").write_text("[[test]]\ntest = 'test_mine.py::test_ordinary'\n")
    ended = lab.run("run", "test_mine.py")

    assert ended.exit_code == 4, ended.output
    assert (
        "flaky.toml: test 1 (test_mine.py::test_ordinary): Object missing required field `owner`"
        in ended.output
    )


def test_plain_pytest_without_disttest_knows_no_quarantine(lab):
    lab.write(test_mine="def test_ordinary():\n    assert False\n")
    (lab.folder / "flaky.toml").write_text("not = 'ours'")
    process = lab.start_pytest("test_mine.py")

    assert "1 failed" in process.communicate(timeout=120)[0]


@pytest.mark.slow("runs each command of the page")
def test_the_page_says_what_is_printed(lab):
    check_page("docs/flaky-tests.md", "Live with flaky tests", lab)
    check_page("docs/flaky-tests.md", "Entries that should go", lab)
    check_page("docs/flaky-tests.md", "Measure a flaky test", lab)
