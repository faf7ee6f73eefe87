"""The suites of ``examples/adopt``, one for each way to start ranks, come to the same by their own way and by ours."""

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from lab import Lab

from disttest.model import Outcome

SUITES = Path(__file__).parents[2] / "examples" / "adopt"
# By their own way these never end; ours ends them at their limit.
HANGING = {"test_hangs", "test_crashes_and_hangs"}
GOOD = {
    *("test_sum", "test_spawned[adds]", "test_script[adds]", "test_written_by_rank_0"),
    *(
        "test_sum_of[float32]",
        "test_sum_of[float64]",
        "test_each",
        "test_marked",
        "test_told[1]",
        "test_read",
    ),
}


@pytest.fixture(scope="module")
def suites(tmp_path_factory, nothing_left) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("adopt"))
    shutil.copytree(SUITES, lab.folder, dirs_exist_ok=True)
    return lab


def own_way(lab: Lab, *arguments: str) -> dict[str, bool]:
    """Test -> whether it passed, where the suites are run as their authors do."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:disttest",
            *arguments,
            "-k",
            "not hangs",
            "--junitxml",
            "own.xml",
        ],
        cwd=lab.folder,
        env=lab.environ,
        capture_output=True,
        timeout=480,
        check=False,
    )
    cases = ET.parse(lab.folder / "own.xml").getroot().iter("testcase")
    return {f"{case.get('classname')}.{case.get('name')}": not len(case) for case in cases}


def ours(ended) -> dict[str, bool]:
    return {
        f"{test.test.classname}.{test.test.name}": test.final.outcome is Outcome.PASSED
        for test in ended.run.tests
    }


def check(ended, *, hanging: int, others: int, at_their_limit=frozenset(HANGING)) -> None:
    """Those tests passed that their authors want to pass, and no others; those that hang ended at their limit."""
    verdicts = ours(ended)
    assert verdicts == {name: name.rpartition(".")[2] in GOOD for name in verdicts}, ended.output
    at_limit = [test.final.message for test in ended.run.tests if test.test.name in at_their_limit]
    assert (hanging, others) == (len(at_limit), len(verdicts) - hanging), ended.output
    assert all(re.search("timed out after (3|20) s", message) for message in at_limit), at_limit


@pytest.mark.slow("its ranks are new interpreters")
def test_suites_that_start_processes_in_tests(suites):
    check(suites.run("--host", "false", "spawn", "launcher", limit_s=480), hanging=2, others=6)


def test_a_suite_of_classes(suites):
    ended = suites.run("classes", limit_s=480)

    check(ended, hanging=1, others=9, at_their_limit={"test_hangs"})
    crash, hang = (
        ended.result(f"TestBad::{name}").message for name in ("test_crashes_and_hangs", "test_hangs")
    )
    assert "rank 1 of 2 was killed by SIGSEGV" in crash
    assert "timed out after 20 s" in hang


@pytest.mark.thorough("other tests end processes of processes; torchrun's import torch twelve times here")
def test_a_script_that_torchrun_starts(suites):
    check(suites.run("--host", "false", "script", limit_s=480), hanging=1, others=3)


@pytest.mark.thorough("tests/compat/test_entry.py runs a class whose processes have no host")
def test_a_suite_of_classes_that_start_processes(suites):
    check(suites.run("--host", "false", "classes", limit_s=480), hanging=2, others=8)


@pytest.mark.thorough("the tests above run the same suites and know what passes")
def test_their_own_way_comes_to_the_same(suites):
    verdicts = own_way(suites, "spawn", "launcher", "classes")

    assert verdicts == {name: name.rpartition(".")[2] in GOOD for name in verdicts}
    assert 14 == len(verdicts)


def test_a_pool_for_the_session(suites):
    own = own_way(suites, "pool")
    ended = suites.run("pool")

    verdicts = ours(ended)
    assert {"pool.test_pooled.test_sum": True, "pool.test_pooled.test_fails": False} == own
    assert own | {"pool.test_pooled.test_crashes_and_hangs": False} == verdicts, ended.output
    assert "timed out after 3 s in call" in ended.result("test_crashes_and_hangs").message
    assert "--isolate-files has no effect where a conftest or plugin has started processes" in ended.output


@pytest.mark.thorough("test_a_suite_for_torchrun runs the same tests")
def test_torchrun_itself_runs_it(suites):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ended = subprocess.run(
        [sys.executable, *torchrun, "-m", "pytest", "-p", "no:disttest", "torchrun", "-k", "sum or written"],
        cwd=suites.folder,
        env=suites.environ,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )

    assert 0 == ended.returncode, ended.stdout + ended.stderr


def test_a_suite_for_torchrun(suites):
    ended = suites.run("--spmd", "2", "torchrun")

    assert {
        "test_sum": Outcome.PASSED,
        "test_written_by_rank_0": Outcome.PASSED,
        "test_fails": Outcome.FAILED,
        "test_crashes": Outcome.ERROR,
        "test_hangs": Outcome.FAILED,
    } == {test.test.name.removesuffix("[2xgloo]"): test.final.outcome for test in ended.run.tests}, (
        ended.output
    )
