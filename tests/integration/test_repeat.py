"""The command below a failure, pasted into a shell, runs that very test again and nothing else."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab import Ended, Lab

from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, read_events

FAILS = """
    import pytest

    @pytest.mark.world_size()
    @pytest.mark.parametrize("text", ["a b", "$(touch pwned)", "it's"])
    def test_odd(world, text):
        assert world.size != 2 or text != "it's"

    @pytest.mark.world_size(2)
    def test_asks(world, pytestconfig):
        assert pytestconfig.getoption("--my-option") != "wrong"

    def test_ordinary():
        assert False
"""
OPTION = """
    def pytest_addoption(parser):
        parser.addoption("--my-option", default="right")
"""
HOSTED = """
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TestHosted(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_hosted(self):
            assert self.rank == 0
"""


@pytest.fixture(scope="module")
def ended(module_lab: Lab) -> Ended:
    below = module_lab.folder / "below"
    below.mkdir()
    lab = module_lab.write(conftest=OPTION).write(**{"below/test_fails": FAILS, "below/test_hosted": HOSTED})
    (lab.folder / "pytest.ini").write_text("[pytest]\n")
    return Lab(below).run(
        *("run", ".", "--world-sizes", "1,2", "--isolation", "fresh", "--timeout", "60"),
        *("--", "-k", "odd or asks or ordinary or hosted", "--my-option", "wrong", "-v"),
        GITHUB_ACTIONS="true",
    )


def commands(ended: Ended) -> list[str]:
    return [
        line.removeprefix("repeat: ")
        for failure in (*ended.junit().iter("failure"), *ended.junit().iter("error"))
        for line in failure.text.splitlines()
        if line.startswith("repeat: ")
    ]


def test_every_report_has_the_command(ended: Ended) -> None:
    found = commands(ended)

    assert 4 == len(found)
    assert all("--timeout 60 --isolation fresh" in command for command in found)
    summary = html.unescape((ended.results / "summary.md").read_text())
    page = html.unescape((ended.results / "report.html").read_text())
    for command in found:
        assert command in summary
        assert command in page
        assert f"%0Arepeat: {command}" in ended.output  # the annotation
    ranks = [command for command in found if "ordinary" not in command]
    assert all(f"\nrepeat: {command}\n" in ended.output for command in ranks)  # pytest's own failure text


@pytest.mark.parametrize("which", ["odd", "asks", "ordinary", "hosted"])
def test_it_runs_that_test_and_it_fails_again(ended: Ended, which: str) -> None:
    (command,) = [command for command in commands(ended) if f"test_{which}" in command]
    folder = ended.results.parent
    again, run = paste(command, folder, f"again-{which}")

    assert 1 == again.returncode, again.stdout
    first = next(test for test in ended.run.bad if f"test_{which}" in test.test.nodeid)
    assert [(first.test.nodeid, first.test.world)] == [
        (test.test.nodeid, test.test.world) for test in run.tests
    ]
    words = [result.message.partition(": ")[2] for result in (first.final, run.tests[0].final)]
    assert words[0] == words[1]
    assert not (folder / "pwned").exists()


def test_a_test_of_a_bundled_suite_is_found_by_its_name(lab: Lab) -> None:
    ended = lab.run("smoke", "--world-sizes", "2", "--slots", "2", "--", "-k", "barrier or reduce")
    test = ended.run.tests[0].test
    from disttest.results.repeat import repeat_command

    again, run = paste(repeat_command(test, ended.run), lab.folder, "again")

    assert 0 == again.returncode, again.stdout
    assert [test.nodeid] == [each.test.nodeid for each in run.tests]


def paste(command: str, folder: Path, results: str):
    """Run it as a shell does, its results beside those of the first run."""
    scripts = folder / "bin"
    scripts.mkdir(exist_ok=True)
    program = scripts / "disttest"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m disttest "$@"\n')
    program.chmod(0o755)
    environ = Lab(folder).environ
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**environ, "PATH": f"{scripts}{os.pathsep}{environ['PATH']}", "DISTTEST_RESULTS": results},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    assert not re.search(r"usage:|no such file", done.stdout, re.IGNORECASE), done.stdout
    return done, fold(read_events(folder / results / FILE_NAME))
