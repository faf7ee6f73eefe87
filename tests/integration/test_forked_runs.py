"""A run that is a fork of the tests' own server is the run that it would be in new processes."""

from __future__ import annotations

import dataclasses

import pytest
from lab import Ended, Lab

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

CONFTEST = """
    from pathlib import Path

    def pytest_report_header():
        return f"is a fork: {b'resident.parent' in Path('/proc/self/cmdline').read_bytes()}"
"""
SUITE = """
    import os, pathlib, sys
    import beside
    import pytest

    @pytest.mark.world_size(2)
    def test_in_its_folder(world):
        assert pathlib.Path.cwd() == pathlib.Path(__file__).parent
        assert beside.VALUE == 1
        assert os.environ["PYTHONHASHSEED"] == "0"

    @pytest.mark.world_size(2)
    def test_fails(world):
        print("written by a rank")
        assert world.rank == 0
"""


def test_it_has_the_folder_the_results_and_the_exit_code_of_one_in_new_processes(lab: Lab) -> None:
    lab.write(conftest=CONFTEST, test_suite=SUITE, beside="VALUE = 1")
    new = run(Lab(lab.folder), "new")
    run(lab, "first")  # the first run of all starts no server
    forked = run(lab, "forked")

    assert "is a fork: False" in new.output
    assert "is a fork: True" in forked.output
    assert 1 == new.exit_code == forked.exit_code
    assert outcomes(new) == outcomes(forked)
    assert len(outcomes(forked)) == 2


def run(lab: Lab, results: str) -> Ended:
    ended = lab.run("run", ".", "--results", results)
    return dataclasses.replace(ended, results=lab.folder / results)


def outcomes(ended: Ended) -> dict[str, Outcome]:
    return {test.test.nodeid: test.final.outcome for test in ended.run.tests}
