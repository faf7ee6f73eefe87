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

pytestmark = pytest.mark.forked_runs

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


SHARED = """
    import pytest

    BEGUN = []

    @pytest.fixture(autouse=True)
    def begun(request):
        BEGUN.append(request.node.name.partition("[")[0])
        yield BEGUN
"""
FIRST = """
    import pytest

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("i", range(2))
    def test_first(world, i):
        pass
"""
AFTER = """
    import pytest
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    BEGUN = []

    @pytest.mark.world_size(2)
    def test_second(world):
        pass

    @pytest.mark.world_size(2)
    def test_warm(world, begun):
        assert len(begun) == 1

    @pytest.mark.world_size(2)
    def test_in_a_new_world(world):
        assert False

    class TestHosted(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            BEGUN.append(self.id())
            self._spawn_processes()

        def test_a(self):
            pass

        def test_hosted(self):
            assert len(BEGUN) == 1

    def test_contained_first():
        pass

    def test_contained(begun):
        assert len(begun) == 1
"""


@pytest.fixture(scope="module")
def ended_warm(module_lab: Lab) -> Ended:
    folder = module_lab.folder / "warm"
    folder.mkdir()
    lab = Lab(folder).write(conftest=SHARED, test_first=FIRST, test_second=AFTER)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return lab.run("run", ".", "--isolation", "warm", "--isolate-files", "--one-world")


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("test_warm", ["first[2xgloo-0]", "first[2xgloo-1]", "second[2xgloo]"]),
        ("test_hosted", ["a"]),
        ("test_contained", ["contained_first"]),
        ("test_in_a_new_world", []),
    ],
)
def test_tests_before_it_in_the_same_processes_are_repeated_first(
    ended_warm: Ended, name: str, before: list[str]
) -> None:
    failed = next(each for each in ended_warm.run.bad if re.search(rf"::{name}(\[|$)", each.test.nodeid))
    command = next(each for each in commands(ended_warm) if failed.test.nodeid in each.split("' '")[-1])
    assert before == [nodeid.rpartition("::test_")[2] for nodeid in failed.final.after]
    told = f"ran before it in the same processes, the last: {failed.final.after[-1]}" if before else ""
    assert told in ended_warm.output
    again, run = paste(command, ended_warm.results.parent, f"again-{name}")

    assert 1 == again.returncode, again.stdout
    assert [*failed.final.after, failed.test.nodeid] == [each.test.nodeid for each in run.tests]
    assert [failed.test.nodeid] == [each.test.nodeid for each in run.bad]
    assert failed.final.after == run.tests[-1].final.after
    assert failed.final.message == run.tests[-1].final.message


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
