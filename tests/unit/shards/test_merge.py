"""Shard results, joined."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from planning_cases import case
from results_files import check_results_below
from shard_runs import START_S, ShardRun, cases

from disttest.cli.main import command
from disttest.errors import UsageError
from disttest.extras.shards.merge_command import render_merged
from disttest.extras.shards.merging import merge
from disttest.extras.shards.shard_plan import (
    VANISHED,
    Plan,
    ShardFacts,
    decode_plan,
    encode_plan,
    plan_equal_shards,
)
from disttest.extras.shards.shard_sources import find_plan, unfold
from disttest.model import Cause, Invocation, Outcome, TestCase
from disttest.planning.timings import Timings
from disttest.reports.write import rebuild, write_reports
from disttest.results.events import CollectionFailed
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events

A, B, C, D = cases("a", "b", "c", "d")


@pytest.fixture
def into(tmp_path: Path) -> Path:
    path = tmp_path / "merged"
    path.mkdir()
    return path


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    path = tmp_path / "artifacts"
    path.mkdir()
    return path


def outcomes(run: RunResult) -> dict[str, Outcome]:
    return {test.test.nodeid: test.final.outcome for test in run.tests}


def two_shards(artifacts: Path, plan: Plan | None = None) -> None:
    plan_id = plan.plan_id if plan else ""
    first = ShardRun(artifacts / "results-1", 1, plan_id=plan_id)
    first.run(A)
    first.run(B, Outcome.SKIPPED)
    first.finish()
    second = ShardRun(artifacts / "results-2", 2, plan_id=plan_id, at_s=START_S + 100)
    second.run(C)
    second.run(D, Outcome.FAILED, message="rank 1 failed")
    second.finish(1)


def test_two_shards_become_one_run(artifacts: Path, into: Path) -> None:
    two_shards(artifacts)

    run = merge([artifacts], into)

    assert {A.nodeid: "passed", B.nodeid: "skipped", C.nodeid: "passed", D.nodeid: "failed"} == outcomes(run)
    assert (1, 4, 4) == (run.exit_code, run.slots, len(run.hardware.gpus))
    assert ["shard-1/w1", "shard-1/w2", "shard-2/w1", "shard-2/w2"] == [
        world.world_id for world in run.worlds
    ]
    assert ("shard-1/gpu:0", "shard-1/gpu:1") == run.worlds[0].slots
    assert [(1, 0), (2, 1)] == [(shard.shard, shard.exit_code) for shard in run.shards]
    assert [("run-of-results-1", 2), ("run-of-results-2", 2)] == [(s.run_id, s.slots) for s in run.shards]
    assert ("run-of-results-1-run-of-results-2", "/repo") == (run.run_id, run.root)
    assert run == fold(read_events(into / FILE_NAME))


def test_logs_are_linked_and_reports_find_them(artifacts: Path, into: Path) -> None:
    two_shards(artifacts)

    run = merge([artifacts], into)
    write_reports(run, into)

    check_results_below(into)
    log = run.tests[3].final.ranks[0].log
    assert "logs/shard-2/d-2+attempt-1+rank0.log" == log
    assert os.path.samefile(into / log, artifacts / "results-2/logs/d-2/attempt-1/rank0.log")
    assert log in (into / "junit.xml").read_text()
    assert rebuild(into)


def test_single_directories_do_as_well_and_the_merged_one_is_not_read(
    artifacts: Path, tmp_path: Path
) -> None:
    two_shards(artifacts)
    inside = artifacts / "merged"
    inside.mkdir()

    first = merge([artifacts / "results-1", artifacts / "results-2"], inside)
    other = tmp_path / "again"
    other.mkdir()

    assert outcomes(first) == outcomes(
        merge([artifacts / "results-1", artifacts / "results-2", artifacts / "results-1"], other)
    )


def test_earlier_merges_below_the_shards_are_not_read_again(artifacts: Path) -> None:
    two_shards(artifacts)
    for name in ("merged", "merged-2", "merged"):
        (artifacts / name).mkdir(exist_ok=True)
        run = merge([artifacts], artifacts / name)
        assert (4, [1, 2]) == (len(run.tests), [shard.shard for shard in run.shards])
        if name == "merged":
            (artifacts / name / FILE_NAME).rename(artifacts / name / "old")


def test_a_merged_run_can_be_merged(artifacts: Path, into: Path, tmp_path: Path) -> None:
    two_shards(artifacts)
    once = merge([artifacts], into)
    again = tmp_path / "again"
    again.mkdir()

    twice = merge([into], again)

    assert 4 == len(twice.tests)
    assert [(1, "run-of-results-1"), (2, "run-of-results-2")] == [(s.shard, s.run_id) for s in twice.shards]
    assert [shard.directory for shard in once.shards] == [shard.directory for shard in twice.shards]
    assert ["run-1.shard-1", "run-1.shard-2"] == [shard.label for shard in twice.shards]
    assert {shard.label for shard in twice.shards} == {w.world_id.partition("/")[0] for w in twice.worlds}
    assert render_merged(once) == render_merged(twice)


def test_a_shard_that_never_reported_is_not_a_pass(artifacts: Path, into: Path) -> None:
    plan = plan_equal_shards([A, B, C], Timings(), shards=3)
    lost = plan.shards[1]
    for shard in (plan.shards[0], plan.shards[2]):
        done = ShardRun(artifacts / f"r{shard.number}", shard.number, plan_id=plan.plan_id)
        for test in shard.tests:
            done.run(test)
        done.finish()

    run = merge([artifacts], into, plan=plan)

    (bad,) = run.bad
    assert lost.tests[0] == bad.test
    assert (Outcome.ERROR, Cause.INFRASTRUCTURE) == (bad.final.outcome, bad.final.cause)
    assert "shard 2 (shard-2) never reported; see the log of its job" == bad.final.message
    assert 7 == run.exit_code


def test_all_shards_may_be_missing(artifacts: Path, into: Path) -> None:
    run = merge([artifacts], into, plan=plan_equal_shards([A, B], Timings(), shards=2))

    assert {"error"} == set(outcomes(run).values())
    assert 7 == run.exit_code


def test_without_a_plan_the_number_of_shards_finds_the_missing_one(artifacts: Path, into: Path) -> None:
    two_shards(artifacts)

    run = merge([artifacts], into, expected_shards=3)

    assert ["shard 3"] == [error.nodeid for error in run.collection_errors]
    assert 0 != run.exit_code


def test_a_planned_test_that_its_shard_did_not_report_is_an_error(artifacts: Path, into: Path) -> None:
    plan = plan_equal_shards([A, B], Timings(), shards=1)
    shard = ShardRun(artifacts / "r1", 1, plan_id=plan.plan_id)
    shard.run(A)
    shard.finish()

    run = merge([artifacts], into, plan=plan)

    assert [B.nodeid] == [test.test.nodeid for test in run.bad]
    assert "shard 1 (shard-1) reported, but not this test, which is in its plan" == run.bad[0].final.message


def without(*tests: TestCase) -> Invocation:
    facts = ShardFacts(vanished=tuple(test.nodeid for test in tests))
    return Invocation(data={"shards": msgspec.to_builtins(facts)})


def only_results(directory: Path) -> None:
    write_reports(fold(read_events(directory / FILE_NAME)), directory, ("json",))
    (directory / FILE_NAME).unlink()


@pytest.mark.parametrize("written", ["the journal", "results.json"])
def test_a_test_that_has_vanished_is_owed_by_nobody(artifacts: Path, into: Path, written: str) -> None:
    plan = plan_equal_shards([A, B], Timings(), shards=1)
    shard = ShardRun(artifacts / "r1", 1, plan_id=plan.plan_id, invocation=without(B))
    shard.run(A)
    shard.finish()
    if written == "results.json":
        only_results(artifacts / "r1")

    run = merge([artifacts], into, plan=plan)
    again = into / "again"
    again.mkdir()

    assert (0, (A.nodeid,)) == (run.exit_code, tuple(outcomes(run)))
    assert outcomes(run) == outcomes(merge([into], again, plan=plan))


@pytest.mark.parametrize("also_runs", [False, True])
def test_shards_whose_tests_have_all_vanished_are_green_only_beside_others(
    artifacts: Path, into: Path, *, also_runs: bool
) -> None:
    plan = plan_equal_shards([A, B], Timings(), shards=2)
    for shard in plan.shards:
        gone = ShardRun(
            artifacts / f"r{shard.number}",
            shard.number,
            plan_id=plan.plan_id,
            invocation=without(*shard.tests),
        )
        if also_runs and shard.number == 2:
            gone.run(C)  # added since the plan was made
        gone.finish(0 if also_runs and shard.number == 2 else 5)

    assert (0 if also_runs else 5) == merge([artifacts], into, plan=plan).exit_code


@pytest.mark.parametrize("hidden_by", ["tests/test_a.py", "tests", "."])
@pytest.mark.parametrize(("also_runs", "code"), [(True, 0), (False, 5)])
def test_planned_tests_of_a_file_that_skips_itself_are_skipped(
    artifacts: Path, into: Path, hidden_by: str, also_runs: bool, code: int
) -> None:
    other = case("e", file="others/test_b.py")
    plan = plan_equal_shards([A, B, other] if also_runs else [A, B], Timings(), shards=1)
    shard = ShardRun(artifacts / "r1", 1, plan_id=plan.plan_id, invocation=without(A, B))
    shard.skip(hidden_by, "no engine")
    if also_runs:
        shard.run(other)
    shard.finish(code)

    run = merge([artifacts], into, plan=plan)
    again = into / "again"
    again.mkdir()

    skipped = {test.test.nodeid: test.final.message for test in run.tests if test.test.nodeid != other.nodeid}
    assert dict.fromkeys((hidden_by, A.nodeid, B.nodeid), "no engine") == skipped
    assert code == run.exit_code, "nothing has run"
    assert outcomes(run) == outcomes(merge([into], again, plan=plan))


def test_a_note_of_a_test_has_no_effect(artifacts: Path, into: Path) -> None:
    plan = plan_equal_shards([A, B], Timings(), shards=1)
    shard = ShardRun(artifacts / "r1", 1, plan_id=plan.plan_id, invocation=Invocation(data={"shards": 1}))
    shard.run(A)
    shard.note(VANISHED, B.nodeid)
    shard.finish()

    assert {A.nodeid: "passed", B.nodeid: "error"} == outcomes(merge([artifacts], into, plan=plan))


SECRET = cases("swordfish", "swordfish-2")
MASKED = cases("***", "***-2")


@pytest.mark.parametrize("planned", ["the original", "a copy"])
def test_a_test_with_a_secret_in_its_name_is_found_by_its_masked_name(
    artifacts: Path, into: Path, planned: str
) -> None:
    plan = plan_equal_shards(SECRET, Timings(), shards=2)
    copy = encode_plan(plan).replace(b"swordfish", b"***")
    shard = ShardRun(artifacts / "r1", 1, plan_id=plan.plan_id)
    shard.run(MASKED[0])
    (shard.finish() / "plan.json").write_bytes(copy)

    run = merge([artifacts], into, plan=plan if planned == "the original" else decode_plan(copy))
    write_reports(run, into)

    assert {MASKED[0].nodeid: "passed", MASKED[1].nodeid: "error"} == outcomes(run)
    assert not [path for path in into.rglob("*") if path.is_file() and b"swordfish" in path.read_bytes()]


def test_tests_whose_masked_names_are_equal_are_one_test(artifacts: Path, into: Path) -> None:
    plan = plan_equal_shards(SECRET, Timings(), shards=1)
    copy = encode_plan(plan).replace(b"swordfish-2", b"***").replace(b"swordfish", b"***")
    shard = ShardRun(artifacts / "r1", 1, plan_id=plan.plan_id)
    shard.run(MASKED[0])
    (shard.finish() / "plan.json").write_bytes(copy)

    assert ["passed"] == list(outcomes(merge([artifacts], into, plan=decode_plan(copy))).values())


@pytest.mark.parametrize("copy", [b"{", b"of another plan"])
def test_a_copy_of_a_plan_that_is_none_is_not_used(artifacts: Path, into: Path, copy: bytes) -> None:
    plan = plan_equal_shards([A], Timings(), shards=1)
    other = encode_plan(plan_equal_shards([B], Timings(), shards=1))
    (ShardRun(artifacts / "r1", 1, plan_id=plan.plan_id).finish() / "plan.json").write_bytes(
        other if copy == b"of another plan" else copy
    )

    assert {A.nodeid: "error"} == outcomes(merge([artifacts], into, plan=plan))


def test_a_shard_that_died_owes_its_tests(artifacts: Path, into: Path) -> None:
    dying = ShardRun(artifacts / "r1", 1)
    dying.run(A)
    dying.collect(B, C)
    dying.start(B)
    ShardRun(artifacts / "r2", 2).finish(5)

    run = merge([artifacts], into)

    messages = {test.test.nodeid: test.final.message for test in run.bad}
    reason = "when shard-1 ended (the run died before it recorded its end)"
    assert {
        B.nodeid: f"did not finish: it was running {reason}",
        C.nodeid: f"did not finish: it had not started {reason}",
    } == messages
    assert 7 == run.exit_code


def test_a_shard_that_died_after_its_last_test_is_not_a_pass(artifacts: Path, into: Path) -> None:
    ShardRun(artifacts / "r1", 1).run(A)

    assert 3 == merge([artifacts], into).exit_code


def test_a_journal_cut_in_the_middle_of_a_line_still_counts(artifacts: Path, into: Path) -> None:
    two_shards(artifacts)
    journal = artifacts / "results-1" / FILE_NAME
    journal.write_bytes(journal.read_bytes()[:-30])

    run = merge([artifacts], into)

    assert "passed" == outcomes(run)[A.nodeid]
    assert any("not an event" in note for note in run.notes)


@pytest.mark.parametrize("bad_first", [True, False])
def test_a_failure_in_one_shard_is_not_hidden_by_a_pass_in_another(
    artifacts: Path, into: Path, bad_first: bool
) -> None:
    for number in (1, 2):
        shard = ShardRun(artifacts / f"r{number}", number)
        shard.run(A, Outcome.FAILED if bad_first == (number == 1) else Outcome.PASSED)
        shard.finish()

    run = merge([artifacts], into)

    assert {A.nodeid: "failed"} == outcomes(run)
    assert 1 == run.exit_code
    assert ([1] if bad_first else [1, 2]) == [attempt.attempt for attempt in run.tests[0].attempts]
    assert bad_first == any("it failed in shard-1, which counts" in note for note in run.notes)


def test_attempts_of_one_shard_stay_attempts(artifacts: Path, into: Path) -> None:
    shard = ShardRun(artifacts / "r1", 1)
    shard.run(A, Outcome.FAILED)
    shard.run(A, attempt=2)
    shard.finish()

    run = merge([artifacts], into)

    assert (0, True) == (run.exit_code, run.tests[0].flaky)


def test_two_results_of_one_shard_are_refused(artifacts: Path, into: Path) -> None:
    for name in ("x", "y"):
        ShardRun(artifacts / name, 1).finish()

    with pytest.raises(
        UsageError, match=r"shard 1 has two results: .*x and .*y; pass --reruns if the later one is a rerun"
    ):
        merge([artifacts], into)


def test_a_rerun_decides_and_the_first_run_is_an_attempt(artifacts: Path, into: Path) -> None:
    first = ShardRun(artifacts / "b-first", 1)
    first.run(A, Outcome.FAILED)
    first.finish(1)
    again = ShardRun(artifacts / "a-again", 1, at_s=START_S + 1000)
    again.run(A)
    again.finish(0)

    run = merge([artifacts], into, reruns=True)

    assert (0, True) == (run.exit_code, run.tests[0].flaky)
    assert ["failed", "passed"] == [attempt.outcome for attempt in run.tests[0].attempts]
    assert render_merged(run) == "1 shard, 1 passed"


@pytest.mark.parametrize(("first", "code"), [(True, 0), (False, 2)])
def test_a_collection_error_counts_if_the_last_run_of_the_shard_has_it(
    artifacts: Path, into: Path, first: bool, code: int
) -> None:
    for number in range(2):
        shard = ShardRun(artifacts / f"r{number}", 1, at_s=START_S + 1000 * number)
        if broken := first == (number == 0):
            shard.say(CollectionFailed, nodeid="tests/broken.py", message="SyntaxError")
        shard.run(A)
        shard.finish(2 if broken else 0)

    run = merge([artifacts], into, reruns=True)
    write_reports(run, into)

    assert (code, not first) == (run.exit_code, bool(run.collection_errors))
    assert f'errors="{0 if first else 1}"' in (into / "junit.xml").read_text()
    note = "tests/broken.py: shard-1: not collected in this run of the shard, but a later one counts"
    assert first == (note in run.notes)


@pytest.mark.parametrize("skipped_in", [{0}, {1}, {0, 1}])
def test_a_file_has_skipped_itself_if_it_did_in_the_last_run_of_its_shard(
    artifacts: Path, into: Path, skipped_in: set[int]
) -> None:
    hidden = case("b", file="tests/test_b.py")
    plan = plan_equal_shards([A, hidden], Timings(), shards=1)
    for number in range(2):
        gone = (hidden,) if number in skipped_in else ()
        at_s = START_S + 1000 * number
        shard = ShardRun(
            artifacts / f"r{number}", 1, plan_id=plan.plan_id, at_s=at_s, invocation=without(*gone)
        )
        shard.skip("tests/test_b.py", "no engine") if gone else shard.run(hidden)
        shard.run(A)
        shard.finish()

    run = merge([artifacts], into, plan=plan, reruns=True)

    attempts = {test.test.nodeid: len(test.attempts) for test in run.tests}
    assert (2, 1, 1 in skipped_in) == (
        attempts[A.nodeid],
        attempts[hidden.nodeid],
        "tests/test_b.py" in attempts,
    )


def test_a_shard_of_another_plan_is_refused(artifacts: Path, into: Path) -> None:
    ShardRun(artifacts / "r", 1, plan_id="other").finish()
    plan = plan_equal_shards([A], Timings(), shards=1)

    with pytest.raises(UsageError, match=f"belongs to plan other, not to plan {plan.plan_id}"):
        merge([artifacts], into, plan=plan)


def test_a_shard_out_of_range_is_refused(artifacts: Path, into: Path) -> None:
    ShardRun(artifacts / "r", 7).finish()

    with pytest.raises(UsageError, match="is shard 7, but there are only 2"):
        merge([artifacts], into, expected_shards=2)


def test_nothing_to_merge_is_refused(artifacts: Path, into: Path) -> None:
    with pytest.raises(UsageError, match=r"no events\.jsonl in the given directories"):
        merge([artifacts], into)
    with pytest.raises(UsageError, match=r"no directory .*elsewhere"):
        merge([artifacts / "elsewhere"], into)


def test_the_no_op_shard_may_report(artifacts: Path, into: Path) -> None:
    plan = plan_equal_shards([], Timings(), shards=1)
    ShardRun(artifacts / "r", 0, plan_id=plan.plan_id).finish(0)

    run = merge([artifacts], into, plan=plan)

    assert (0, ()) == (run.exit_code, run.tests)


def test_a_shard_without_any_test_is_no_pass_even_if_it_says_so(artifacts: Path, into: Path) -> None:
    ShardRun(artifacts / "r", 1).finish(0)

    assert 5 == merge([artifacts], into).exit_code


def test_shards_that_ran_nothing_at_all_are_not_a_pass(artifacts: Path, into: Path) -> None:
    ShardRun(artifacts / "r", 1).finish(5)

    assert 5 == merge([artifacts], into).exit_code


def test_an_empty_shard_beside_others_is_fine(artifacts: Path, into: Path) -> None:
    ShardRun(artifacts / "r1", 1).finish(5)
    other = ShardRun(artifacts / "r2", 2)
    other.run(A)
    other.finish()

    assert 0 == merge([artifacts], into).exit_code


def test_results_json_stands_in_for_a_lost_journal(artifacts: Path, into: Path) -> None:
    two_shards(artifacts)
    for number in (1, 2):
        only_results(artifacts / f"results-{number}")

    run = merge([artifacts], into)

    assert {A.nodeid: "passed", B.nodeid: "skipped", C.nodeid: "passed", D.nodeid: "failed"} == outcomes(run)
    assert [1, 2] == [shard.shard for shard in run.shards]


def test_unfold_undoes_fold(artifacts: Path, into: Path) -> None:
    two_shards(artifacts)

    for run in (fold(read_events(artifacts / "results-2" / FILE_NAME)), merge([artifacts], into)):
        assert run == fold(unfold(run))


def test_missing_logs_are_counted_and_not_linked(artifacts: Path, into: Path) -> None:
    two_shards(artifacts)
    (artifacts / "results-1/logs/a-2/attempt-1/rank0.log").unlink()

    run = merge([artifacts], into)

    assert "" == run.tests[0].final.ranks[0].log
    assert any("shard-1: 1 rank logs are missing" in note for note in run.notes)


@pytest.mark.parametrize(
    "log",
    [
        *("/etc/passwd", "../secret", "logs/../../secret", "logs/link", ".", "/", "logs"),
        *("logs/folder/secret", "logs/a/folder/secret", "logs/pipe", "logs/null"),
    ],
)
def test_a_log_outside_of_its_shard_is_not_taken_in(tmp_path: Path, into: Path, log: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").write_text("secret")
    shard = ShardRun(tmp_path / "artifacts/r1", 1)
    (shard.path / "logs/a").mkdir(parents=True)
    (shard.path / "logs/link").symlink_to(tmp_path / "elsewhere/secret")
    (shard.path / "logs/folder").symlink_to(tmp_path / "elsewhere")
    (shard.path / "logs/a/folder").symlink_to("../../../../elsewhere")
    (shard.path / "logs/null").symlink_to("/dev/null")
    os.mkfifo(shard.path / "logs/pipe")
    shard.run(A, Outcome.FAILED, log=log, message="rank 0 failed")
    shard.finish()

    run = merge([tmp_path / "artifacts"], into)
    write_reports(run, into)

    assert "" == run.tests[0].final.ranks[0].log
    assert 1 == (tmp_path / "elsewhere/secret").stat().st_nlink
    found = [path for path in into.rglob("*") if path.is_file() and b"secret\n" in path.read_bytes()]
    assert not found
    assert not list(into.glob("logs/*/*"))


@pytest.mark.parametrize("name", ["events.jsonl", "results.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_shard_whose_record_is_no_file_costs_that_shard_alone(
    artifacts: Path, into: Path, name: str, kind: str
) -> None:
    two_shards(artifacts)
    bad = artifacts / "results-3"
    bad.mkdir()
    {
        "link": lambda: (bad / name).symlink_to(artifacts / "results-2" / FILE_NAME),
        "pipe": lambda: os.mkfifo(bad / name),
        "folder": (bad / name).mkdir,
    }[kind]()

    run = merge([artifacts], into)

    assert {A.nodeid, B.nodeid, C.nodeid, D.nodeid} == set(outcomes(run))
    if kind != "folder":
        assert any(f"{bad / name}" in note for note in run.notes), run.notes


def test_a_plan_that_is_no_file_is_not_found(artifacts: Path) -> None:
    os.mkfifo(artifacts / "plan.json")

    assert find_plan([artifacts]) is None


def test_logs_are_copied_where_no_link_is_possible(
    artifacts: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_shards(artifacts)
    monkeypatch.setattr(os, "link", _no_links)

    run = merge([artifacts], into)

    log = into / run.tests[0].final.ranks[0].log
    assert f"log of {A.nodeid} in results-1\n" == log.read_text()
    assert 1 == log.stat().st_nlink


def test_a_log_of_a_terabyte_is_not_copied(
    artifacts: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_shards(artifacts)
    log = artifacts / "results-1/logs/a-2/attempt-1/rank0.log"
    os.truncate(log, 1 << 40)
    monkeypatch.setattr(os, "link", _no_links)

    run = merge([artifacts], into)

    assert any("shard-1: 1 rank logs are missing" in note for note in run.notes)


def _no_links(*_paths: object, **_options: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


def test_a_collection_error_that_all_shards_have_is_reported_once(artifacts: Path, into: Path) -> None:
    for number in (1, 2):
        shard = ShardRun(artifacts / f"r{number}", number)
        shard.say(CollectionFailed, nodeid="tests/broken.py", message="SyntaxError")
        shard.finish(2)

    run = merge([artifacts], into)

    assert 1 == len(run.collection_errors)
    assert 2 == run.exit_code


def test_the_exit_code_of_a_shard_is_kept_when_no_test_is_to_blame(artifacts: Path, into: Path) -> None:
    shard = ShardRun(artifacts / "r1", 1)
    shard.run(A)
    shard.finish(124, "the deadline of the run passed")

    run = merge([artifacts], into)

    assert (124, "shard 1: the deadline of the run passed") == (run.exit_code, run.reason)


@pytest.mark.parametrize(("expected", "code"), [(0, 0), (2, 0), (3, 7)])
def test_runs_without_shard_numbers_are_merged_too(
    artifacts: Path, into: Path, expected: int, code: int
) -> None:
    for name, test in (("x", A), ("y", B)):
        run = ShardRun(artifacts / name)
        run.run(test)
        run.finish()

    merged = merge([artifacts], into, expected_shards=expected)

    assert ["run-1", "run-2"] == [world.world_id.split("/")[0] for world in merged.worlds]
    assert code == merged.exit_code


def test_the_plan_is_found_beside_the_shards(artifacts: Path) -> None:
    two_shards(artifacts)
    assert find_plan([artifacts]) is None

    (artifacts / "results-2/plan.json").write_bytes(encode_plan(plan_equal_shards([A], Timings(), shards=1)))

    assert artifacts / "results-2/plan.json" == find_plan([artifacts])


def test_a_broken_results_json_is_an_error_of_its_shard(artifacts: Path, into: Path) -> None:
    (artifacts / "r1").mkdir()
    (artifacts / "r1/results.json").write_text('{"run_id": 1')

    run = merge([artifacts], into)

    assert 0 != run.exit_code
    assert any("cannot be read" in note for note in run.notes)


def test_every_test_of_many_shards_counts_once(artifacts: Path, into: Path) -> None:
    tests = [case(f"t{n}") for n in range(60)]
    plan = plan_equal_shards(tests, Timings(), shards=6)
    for shard in plan.shards:
        run = ShardRun(artifacts / str(shard.number), shard.number, plan_id=plan.plan_id)
        for test in shard.tests:
            run.run(test)
        run.finish()

    merged = merge([artifacts], into, plan=plan)

    assert {test.nodeid for test in tests} == {test.test.nodeid for test in merged.tests}
    assert (60, 0) == (merged.counts()[Outcome.PASSED], merged.exit_code)
    assert merged == msgspec.json.decode(msgspec.json.encode(merged), type=RunResult)


@pytest.mark.parametrize("results", ["artifacts", "."])
def test_shards_in_the_results_directory_are_refused_and_stay(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch, results: str
) -> None:
    two_shards(artifacts)
    monkeypatch.chdir(artifacts.parent)
    before = sorted(artifacts.rglob("*"))

    ended = CliRunner().invoke(command, ["merge", "artifacts", "--results", results], obj=[])

    assert isinstance(ended.exception, UsageError)
    assert f"--results {results} has the shards of artifacts in it" in str(ended.exception)
    assert before == sorted(artifacts.rglob("*"))


@pytest.mark.parametrize(
    ("outcome", "cause", "kept"),
    [
        (Outcome.PASSED, None, False),
        (Outcome.SKIPPED, None, True),
        (Outcome.NOT_RUN, None, True),
        (Outcome.XFAILED, None, True),
        (Outcome.ERROR, Cause.INFRASTRUCTURE, True),
    ],
)
def test_a_rerun_that_proves_nothing_does_not_undo_a_failure(
    artifacts: Path, into: Path, outcome: Outcome, cause: Cause | None, kept: bool
) -> None:
    first = ShardRun(artifacts / "first", 1)
    first.run(A, Outcome.FAILED)
    first.finish(1)
    again = ShardRun(artifacts / "again", 1, at_s=START_S + 1000)
    again.run(A, outcome, cause=cause)
    again.run(B)
    again.finish(7 if cause else 0)

    run = merge([artifacts], into, reruns=True)

    assert ("failed" if kept else "passed", int(kept)) == (outcomes(run)[A.nodeid], run.exit_code)
    assert kept == any("it failed in shard-1, which counts" in note for note in run.notes)


def test_a_rerun_may_skip_what_a_machine_kept_from_running(artifacts: Path, into: Path) -> None:
    first = ShardRun(artifacts / "first", 1)
    first.collect(A)
    first.run(B)
    first.finish(143, "cancelled")
    again = ShardRun(artifacts / "again", 1, at_s=START_S + 1000)
    again.run(A, Outcome.SKIPPED)
    again.run(B)
    again.finish()

    run = merge([artifacts], into, reruns=True)

    assert (0, "skipped") == (run.exit_code, outcomes(run)[A.nodeid])


@pytest.mark.parametrize("flaky_first", [True, False])
def test_a_test_that_is_flaky_in_one_run_and_passes_in_another_is_flaky(
    artifacts: Path, into: Path, flaky_first: bool
) -> None:
    for number in range(2):
        run = ShardRun(artifacts / f"r{number}", at_s=START_S + 1000 * number)
        if flaky := flaky_first == (number == 0):
            run.run(A, Outcome.FAILED)
        run.run(A, attempt=1 + flaky)
        run.finish()

    merged = merge([artifacts], into)

    (test,) = merged.tests
    assert (0, "passed", True) == (merged.exit_code, test.final.outcome, test.flaky)
    assert ["failed", "passed"] == [a.outcome for a in test.attempts][not flaky_first :][:2]
    assert not merged.notes


@pytest.mark.parametrize("skipped_first", [True, False])
def test_a_test_that_one_machine_skips_and_another_one_runs_has_run(
    artifacts: Path, into: Path, skipped_first: bool
) -> None:
    for number in range(2):
        run = ShardRun(artifacts / f"r{number}", at_s=START_S + 1000 * number)
        run.run(A, Outcome.SKIPPED if skipped_first == (number == 0) else Outcome.PASSED)
        run.finish()

    merged = merge([artifacts], into)

    assert (0, {A.nodeid: "passed"}) == (merged.exit_code, outcomes(merged))
