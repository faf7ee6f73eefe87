"""The commands plan and merge, without collecting and without a process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest
from command_runner import command_runner
from planning_cases import case
from shard_runs import START_S, ShardRun, cases

from disttest.errors import DisttestError
from disttest.extras.shards.merge_command import merge_command
from disttest.extras.shards.plan_command import plan_command
from disttest.extras.shards.shard_plan import decode_plan
from disttest.model import Invocation, Outcome, TestCase

TESTS = [case("a", 1), case("b", 2), case("c", 4)]


def run(command: click.Command, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; an error of ours is what main() makes of it."""
    result = command_runner().invoke(command, list(arguments), obj=())
    if isinstance(result.exception, DisttestError):
        return int(result.exception.exit_code), result.stdout, str(result.exception)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, tests=TESTS: run(plan_command(lambda *_: tests), "suite", *arguments)


def test_a_plan_is_written_and_shown(plan, tmp_path: Path) -> None:
    code, out, _ = plan(
        "--pool", "gpu1:1:2", "--pool", "gpu8:8:1", "--revision", "abc", "--matrix", "matrix.json"
    )

    made = decode_plan((tmp_path / "plan.json").read_bytes())
    assert (0, 2, "abc") == (code, len(made.shards), made.revision)
    assert "gpu8-1" in out
    assert "3 tests in 2 shards" in out
    assert "plan written to plan.json" in out
    assert 2 == len(json.loads((tmp_path / "matrix.json").read_text())["include"])


def test_the_matrix_alone_goes_to_stdout(plan) -> None:
    code, out, err = plan("--shards", "2", "--matrix", "-")

    assert 0 == code
    assert 2 == len(json.loads(out)["include"])
    assert 1 == out.count("\n")
    assert "plan written" in err


def test_by_world_size(plan) -> None:
    assert ["world-1", "world-2", "world-4"] == [
        entry["name"] for entry in json.loads(plan("--by", "world-size", "--matrix", "-")[1])["include"]
    ]


def test_timings_split_by_time_and_bad_ones_warn(plan, tmp_path: Path) -> None:
    shard = ShardRun(tmp_path / "earlier")
    for test, seconds in zip(TESTS, (10, 10, 100), strict=True):
        shard.run(test, seconds=seconds)
    shard.finish()
    (tmp_path / "broken.xml").write_text("<oops")

    code, _, err = plan("--shards", "2", "--timings", "earlier", "--timings", "broken.xml", "--slots", "4")

    assert 0 == code
    assert "disttest: warning: broken.xml:1: the rest is skipped, not XML" in err
    made = decode_plan((tmp_path / "plan.json").read_bytes())
    assert [{"a", "b"}, {"c"}] == sorted(
        ({test.name[0] for test in shard.tests} for shard in made.shards), key=lambda names: sorted(names)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one of --pool NAME:GPUS:RUNNERS, --shards N and --by world-size"),
        (("--shards", "2", "--by", "world-size"), "give one of"),
        (("--pool", "a:0:1"), "GPUs per runner must be"),
        (("--pool", "a:8:1", "--slots", "2"), "--slots needs --shards"),
        (("--shards", "2", "--labels", "a=b"), "--labels needs --pool"),
        (("--shards", "0"), "--shards: '0' is not a whole number from 1"),
        (("--shards", "257"), "--shards must be between 1 and 256, not 257"),
        (("--shards", "2", "--slots", "-1"), "--slots: '-1' is not a whole number"),
    ],
)
def test_bad_requests_are_refused_and_nothing_is_written(
    plan, tmp_path: Path, arguments, message: str
) -> None:
    code, _, err = plan(*arguments)

    assert 4 == code
    assert message in err
    assert not list(tmp_path.iterdir())


def test_a_pool_that_is_too_small_is_exit_code_6(plan) -> None:
    code, _, err = plan("--pool", "gpu1:1:1")

    assert 6 == code
    assert (
        "no pool holds 2 ranks for tests/test_a.py::b[2xgloo]; 4 ranks for tests/test_a.py::c[4xgloo]" in err
    )


def test_a_place_that_can_not_be_written_is_named(plan, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    code, _, err = plan("--shards", "1", "--output", "file/plan.json")

    assert (4, True) == (code, "file/plan.json cannot be written: " in err)


def test_no_tests_are_an_error_unless_allowed(plan, tmp_path: Path) -> None:
    code, _, err = plan("--shards", "2", "--matrix", "m.json", tests=[])
    assert (5, True) == (code, "no tests to plan; pass --allow-empty to accept that" in err)
    assert json.loads((tmp_path / "m.json").read_text())["include"][0]["no_op"]

    assert 0 == plan("--shards", "2", "--allow-empty", tests=[])[0]


@pytest.fixture
def merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run(merge_command(), *arguments)


def shards(path: Path, tests: Sequence[TestCase], outcome: Outcome = Outcome.PASSED) -> None:
    for number, test in enumerate(tests, 1):
        shard = ShardRun(path / f"r{number}", number)
        shard.run(test, outcome)
        shard.finish(int(outcome.is_bad))


def test_shards_are_merged_and_reported(merge, tmp_path: Path) -> None:
    shards(tmp_path / "in", cases("a", "b"))

    code, out, _ = merge("in", "--shards", "2", "--results", "merged")

    assert (0, "disttest: 2 shards, 2 passed; reports in merged\n") == (code, out)
    assert {"events.jsonl", "junit.xml", "results.json", "summary.md"} <= {
        path.name for path in (tmp_path / "merged").iterdir()
    }


def test_a_missing_shard_is_found_through_the_plan(merge, plan, tmp_path: Path) -> None:
    plan("--by", "world-size", "--output", "made/plan.json")
    made = decode_plan((tmp_path / "made/plan.json").read_bytes())
    done = ShardRun(tmp_path / "in/r1", 1, plan_id=made.plan_id)
    done.run(made.shards[0].tests[0])
    done.finish()

    code, out, _ = merge("in", "--plan", "made/plan.json")

    assert 7 == code
    assert "1 shard, 1 passed, 2 error" in out
    assert "never reported" in (tmp_path / "merged/junit.xml").read_text()


@pytest.mark.parametrize(
    ("page", "arguments", "code", "conclusion"),
    [
        ("page", (), 0, "success"),
        ("page", ("--min-tests", "3"), 1, "failure"),
        ("missing/page", (), 3, "error"),
    ],
)
def test_outputs_of_merged_results_say_how_the_command_ends(
    merge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
    arguments: tuple[str, ...],
    code: int,
    conclusion: str,
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / page))
    shards(tmp_path / "in", cases("a", "b"))

    ended, _, err = merge("in", *arguments)

    assert ended == code
    told = (tmp_path / "output").read_text()
    assert f"\n{conclusion}\n" in told
    assert f"\n{code}\n" in told
    assert ("could not write GitHub's" in err) == (code == 3)
    assert code == 3 or ("disttest: passed" in (tmp_path / page).read_text()) == (code == 0)


def test_floors_make_a_merged_run_red(merge, tmp_path: Path) -> None:
    shards(tmp_path / "in", cases("a", "b"), Outcome.SKIPPED)
    (tmp_path / "must.txt").write_text("tests/test_a.py::a\n")

    code, _, err = merge("in", "--min-tests", "1", "--max-skip-ratio", "0.5", "--expect", "must.txt")

    assert 1 == code
    for message in (
        "only 0 tests ran",
        "2 of 2 tests were skipped",
        "must.txt:1 expects tests/test_a.py::a to run",
    ):
        assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "there is no directory nowhere"),
        (("in", "--plan", "none.json"), "the plan cannot be read from none.json"),
        (("in", "--plan", "in/r1/events.jsonl"), "is not a plan"),
        (("in", "--expect", "none.txt"), "--expect: none.txt cannot be read"),
        (("in", "--max-skip-ratio", "nan"), "--max-skip-ratio: 'nan' is not a number between 0 and 1"),
        (("in", "--min-tests", "-1"), "--min-tests: '-1' is not a whole number"),
        (("in", "--shards", "-1"), "--shards: '-1' is not a whole number from 1"),
        (("in", "--shards", "1"), "is shard 2, but there are only 1"),
    ],
)
def test_bad_merges_are_refused(merge, tmp_path: Path, arguments, message: str) -> None:
    shards(tmp_path / "in", cases("a", "b"))

    code, _, err = merge(*arguments)

    assert 4 == code
    assert message in err


def test_a_test_that_passed_in_a_rerun_only_is_red_if_flaky_tests_are(merge, tmp_path: Path) -> None:
    asked = Invocation(options={"flaky": "fail"})
    for number, outcome in enumerate((Outcome.FAILED, Outcome.PASSED)):
        shard = ShardRun(tmp_path / f"in/r{number}", 1, at_s=START_S + 1000 * number, invocation=asked)
        shard.run(*cases("a"), outcome)
        shard.finish(int(outcome.is_bad))

    code, _, err = merge("in", "--reruns")

    assert (1, True) == (code, "--flaky=fail: 1 test passed only when tried again" in err)
    assert 'failures="1"' in (tmp_path / "merged/junit.xml").read_text()
