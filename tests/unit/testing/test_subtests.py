"""``run_subtests`` in a process without a group."""

import unittest

import pytest

from disttest.testing.subtests import run_subtests


@pytest.mark.parametrize(
    "skip", [unittest.SkipTest("no GPU"), pytest.skip.Exception("no GPU"), SystemExit(74)]
)
def test_a_skipped_configuration_hides_no_failure(skip):
    def run(kind):
        if kind == "red":
            raise ValueError("wrong sum")
        if kind == "skipped":
            raise skip

    with pytest.raises(AssertionError, match="wrong sum"):
        run_subtests(unittest.TestCase(), {"kind": ["green", "red", "skipped"]}, run)
    with pytest.raises(type(skip)):
        run_subtests(unittest.TestCase(), {"kind": ["green", "skipped"]}, run)


def test_an_interrupt_is_no_failure_of_a_configuration():
    def run(kind):
        raise ValueError if kind == "red" else KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_subtests(unittest.TestCase(), {"kind": ["red", "stopped"]}, run)
