"""What is said of real worlds that run into their limit, each in its own way: one run, one finding for each."""

import html
import pickle
import re
import subprocess
import sys

import pytest
from lab import FAULTY_SUITES, Ended

from disttest.model import Outcome

FINDINGS = {
    "missing": (
        r"rank 1 never joined all_reduce #2 \(group default\): rank 0 waits at hangs.py:\d+, "
        r"rank 1 is in test_missing at hangs.py:\d+",
        1,
    ),
    "operations_differ": (
        r"ranks disagree at collective #1 of group default: rank 0 called broadcast at hangs.py:\d+, "
        r"rank 1 called all_reduce at hangs.py:\d+",
        None,
    ),
    "shapes_differ": (
        r"ranks disagree at collective #1 of group default: rank 0 called broadcast of float32\[4\] at "
        r"hangs.py:\d+, rank 1 called broadcast of float32\[5\] at hangs.py:\d+",
        None,
    ),
    "dtypes_differ": (
        r"ranks disagree at collective #1 of group default: rank 0 called broadcast of float32\[4\] at "
        r"hangs.py:\d+, rank 1 called broadcast of float64\[4\] at hangs.py:\d+",
        None,
    ),
    "groups_differ": (
        r"groups wait for each other: rank 0 waits in all_reduce #1 \(group first\) at hangs.py:\d+, "
        r"rank 1 waits in all_reduce #1 \(group second\) at hangs.py:\d+",
        None,
    ),
    "groups_in_opposite_order": (
        r"groups wait for each other: rank 0 waits in barrier #1 \(group first\) at hangs.py:\d+, "
        r"rank 1 waits in barrier #1 \(group second\) at hangs.py:\d+",
        None,
    ),
    "point_to_point": (
        r"point-to-point calls that do not match: rank 0 waits in recv at hangs.py:\d+, "
        r"rank 1 waits in recv at hangs.py:\d+",
        None,
    ),
    "slow": (
        r"rank 1 is in test_slow at hangs.py:\d+, not waiting for another rank; rank 0 had finished",
        1,
    ),
    "teardown": (
        r"the test finished, its tear-down hangs: rank 0 is in hanging_teardown at hangs.py:\d+; "
        r"rank 1 had finished",
        0,
    ),
    "barrier_at_teardown": (
        r"rank 1 never joined barrier #2 \(group default\): rank 0 waits at hangs.py:\d+, "
        r"rank 1 had finished the test",
        1,
    ),
}


@pytest.fixture(scope="module")
def ended(module_lab) -> Ended:
    return module_lab.run("run", str(FAULTY_SUITES / "hangs.py"), "--slots", "8", "--deadlock", "off")


@pytest.mark.parametrize("name", FINDINGS)
def test_the_finding_is_the_message(ended, name):
    finding, culprit = FINDINGS[name]
    result = ended.result(f"test_{name}")

    assert re.fullmatch(finding + r" \(timed out after 2 s\)", result.message), result.message
    assert (Outcome.FAILED, culprit) == (result.outcome, result.culprit)


def test_tensors_of_different_sizes_are_named_where_gloo_aborts_the_rank(ended):
    result = ended.result("test_shapes_differ_and_gloo_aborts")
    case = next(c for c in ended.junit().iter("testcase") if "gloo_aborts" in c.get("name"))
    (line,) = re.findall(r"all_reduce at hangs\.py:(\d+)", result.message)

    assert (Outcome.ERROR, 0) == (result.outcome, result.culprit)
    assert re.fullmatch(
        r"rank 0 of 2 was sent \d+ bytes where it expected \d+, in all_reduce at hangs\.py:\d+: the ranks' tensors "
        r"differ in size \(gloo then aborted its process\)",
        result.message,
    )
    assert "gloo::EnforceNotMet: " in result.ranks[0].message
    assert "in test_shapes_differ_and_gloo_aborts" in result.ranks[0].stacks
    assert line == case.get("line")


def test_what_ranks_called_is_told_where_gloo_aborts_one(lab):
    ended = lab.run("run", str(FAULTY_SUITES / "hangs.py"), "-k", "gloo_aborts")
    message = ended.result("test_shapes_differ_and_gloo_aborts").message

    assert re.fullmatch(
        r"ranks disagree at collective #1 of group default: rank 0 called all_reduce of float32\[4\] at hangs\.py:\d+, "
        r"rank 1 called all_reduce of float32\[60004\] at hangs\.py:\d+ \(gloo then aborted rank 0\)",
        message,
    ), message


def test_the_first_line_everywhere_is_the_finding(ended):
    message = ended.result("test_missing").message
    case = next(c for c in ended.junit().iter("testcase") if c.get("name") == "test_missing[2xgloo]")

    assert message == case.find("failure").get("message").splitlines()[0]
    assert message in ended.output.replace("\n", "")
    assert message in html.unescape((ended.results / "summary.md").read_text())


def test_ranks_that_wait_at_the_same_place_are_told_once(ended):
    case = next(c for c in ended.junit().iter("testcase") if c.get("name") == "test_point_to_point[2xgloo]")

    assert "----- 2 ranks alike: ranks 0, 1: timed out in call -----" in case.find("failure").text
    assert 1 == case.find("failure").text.count("in test_point_to_point")


def test_torchs_analyser_reads_the_dumps(ended):
    folder = (ended.results / ended.result("test_missing").ranks[0].log).parent / "flight"

    assert {"rank_0", "rank_1"} == {path.name for path in folder.iterdir()}
    analysed = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == analysed.returncode, analysed.stderr
    groups = pickle.loads((folder / "rank_0").read_bytes())["pg_config"]
    assert {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}} == groups


def test_the_one_that_does_not_hang_passes(ended):
    assert Outcome.PASSED is ended.result("test_everybody_is_fine").outcome
    assert len(FINDINGS) + 1 == len(ended.run.bad)
