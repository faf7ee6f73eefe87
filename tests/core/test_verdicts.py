"""What the product makes of ranks that fail, crash, leave, skip, hang: one run, many verdicts."""

import pytest
from lab import FAULTY_SUITES, Ended

from disttest.model import Outcome, RankEnd

CRASHES = {
    "test_segfault": "rank 1 of 2 was killed by SIGSEGV in call, before it reported",
    "test_sigkill": "rank 1 of 2 was killed by SIGKILL in call, before it reported",
    "test_exit_0": "rank 1 of 2 exited with code 0 in call, before it reported",
    "test_exit_0_peer_independent": "rank 1 of 2 exited with code 0 in call, before it reported",
    "test_crash_is_no_xfail": "rank 1 of 2 exited with code 1 in call, before it reported",
    "test_forked_grandchild_holds_channel_and_rank_dies": (
        "rank 1 of 2 was killed by SIGKILL in call, before it reported"
    ),
}
FAILURES = {
    "test_fails_on_rank_1": "rank 1 of 2 failed: AssertionError: rank one says no",
    "test_fails_while_peer_waits": "rank 1 of 2 failed: ValueError: boom on rank 1",
    "test_sys_exit_3": "rank 1 of 2 failed: SystemExit: 3",
    "test_closes_stdio_and_fails": "rank 1 of 2 failed: AssertionError: assert 1 == 0",
}
PASSES = (
    "test_passes",
    "test_closes_stdio",
    "test_grandchild_keeps_pipe_open",
    "test_double_fork_new_session",
    "test_flood",
    "test_after_all_that",
    "test_method",
)


@pytest.fixture(scope="module")
def ended(module_lab) -> Ended:
    return module_lab.run(
        "run", str(FAULTY_SUITES / "test_verdicts.py"), "--slots", "4", DISTTEST_LOG_LIMIT="1m"
    )


@pytest.mark.parametrize(("name", "message"), CRASHES.items())
def test_a_rank_that_dies_is_an_error_that_names_it(ended, name, message):
    result = ended.result(name)

    assert (result.outcome, result.message, result.culprit) == (Outcome.ERROR, message, 1)


@pytest.mark.parametrize(("name", "message"), FAILURES.items())
def test_a_failing_rank_is_the_culprit(ended, name, message):
    result = ended.result(name)

    assert (result.outcome, result.message, result.culprit) == (Outcome.FAILED, message, 1)


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("exits", "exited with code 70"),
        ("aborts", "was killed by SIGABRT"),
        ("exits when asked", "exited with code 70"),
    ],
)
def test_a_rank_that_fails_and_then_dies_has_failed(ended, how, end):
    """What it raised comes first: its death explains nothing."""
    result = ended.result(f"test_fails_and_dies[2xgloo-{how}]")

    assert (Outcome.FAILED, "call", 1) == (result.outcome, result.phase, result.culprit)
    assert f"rank 1 of 2 failed: ValueError: boom; then it {end} in teardown" == result.message
    assert 'raise ValueError("boom")' in result.details


@pytest.mark.parametrize("name", PASSES)
def test_passes_if_all_ranks_pass(ended, name):
    result = ended.result(name)

    assert (Outcome.PASSED, ()) == (result.outcome, result.victims)
    assert [RankEnd.REPORTED] * 2 == [rank.end for rank in result.ranks]


def test_the_waiting_peer_is_a_victim_with_its_stack(ended):
    result = ended.result("test_fails_while_peer_waits")

    assert (0,) == result.victims
    assert RankEnd.KILLED is result.ranks[0].end
    assert "test_verdicts.py" in result.ranks[0].stacks
    assert "in test_fails_while_peer_waits" in result.ranks[0].stacks
    assert "in test_fails_while_peer_waits" in ended.log("test_fails_while_peer_waits", 0)
    assert "timed out" not in result.message


@pytest.mark.parametrize("name", ["test_setup_error", "test_teardown_error"])
def test_errors_of_fixtures_name_the_phase(ended, name):
    result = ended.result(name)
    phase = name.split("_")[1]

    assert Outcome.ERROR is result.outcome
    assert f"rank 1 of 2 failed in {phase}: RuntimeError: " in result.message


def test_a_hang_ends_at_its_deadline_with_all_stacks(ended):
    result = ended.result("test_hang")

    assert Outcome.FAILED is result.outcome
    assert (
        "rank 1 never joined barrier #1 (group default): rank 0 waits at test_verdicts.py:" in result.message
    )
    assert "rank 1 is in test_hang at test_verdicts.py:" in result.message
    assert result.message.endswith("(timed out after 1 s)")
    assert (1, (0,)) == (result.culprit, result.victims)
    assert "in barrier" in result.ranks[0].stacks
    assert "in test_hang" in result.ranks[1].stacks
    assert "in test_hang" in ended.log("test_hang", 1)


def test_a_hang_of_one_rank_names_it(ended):
    result = ended.result("test_one_rank_finishes_other_hangs")

    assert (Outcome.FAILED, 1) == (result.outcome, result.culprit)
    assert "rank 1 is in test_one_rank_finishes_other_hangs at test_verdicts.py:" in result.message
    assert "not waiting for another rank; rank 0 had finished (timed out after 2 s)" in result.message


def test_sigterm_is_followed_by_sigkill(ended):
    result = ended.result("test_ignores_sigterm_and_hangs")

    assert Outcome.FAILED is result.outcome
    assert [RankEnd.KILLED] * 2 == [rank.end for rank in result.ranks]


def test_skips(ended):
    assert Outcome.SKIPPED is ended.result("test_skip_everywhere").outcome
    assert "not today" == ended.result("test_skip_everywhere").message
    by_mark = ended.result("test_skip_by_mark")
    assert (Outcome.SKIPPED, "decided before a process starts", "") == (
        by_mark.outcome,
        by_mark.message,
        by_mark.world_id,
    )
    assert Outcome.SKIPPED is ended.result("test_skipped[2xgloo]").outcome


def test_a_mix_of_skip_and_pass_is_a_failure_unless_the_test_says_that_ranks_may_differ(ended):
    disagree, may_differ = ended.result("test_skip_on_rank_1"), ended.result("test_skip_as_marked")

    assert (Outcome.FAILED, Outcome.PASSED) == (disagree.outcome, may_differ.outcome)
    assert "ranks disagree: rank 0 passed, rank 1 skipped" == disagree.message
    assert ("rank 1 skipped it: rank 1 does not do this",) == disagree.notes == may_differ.notes


def test_xfail_across_ranks(ended):
    assert Outcome.XFAILED is ended.result("test_xfail_on_one_rank").outcome
    assert Outcome.XPASSED is ended.result("test_lenient_xpass").outcome
    strict = ended.result("test_strict_xpass")
    assert Outcome.FAILED is strict.outcome
    assert "passed on all 2 ranks, although it is marked as a strict xfail: outdated" == strict.message


def test_unittest_subtests_fail_in_their_rank_only(ended):
    one = ended.result("test_subtests[1xgloo]")
    two = ended.result("test_subtests[2xgloo]")

    assert Outcome.PASSED is one.outcome
    assert (Outcome.FAILED, 1) == (two.outcome, two.culprit)


def test_a_flood_is_capped_with_head_and_tail(ended):
    text = ended.log("test_flood", 0)

    assert len(text) < 1.1 * 1024 * 1024
    assert text.startswith("x" * 100)
    assert text.endswith("the end\n")
    assert "bytes cut here: log-limit" in text


def test_odd_output_reaches_valid_reports(ended):
    case = next(c for c in ended.junit().iter("testcase") if c.get("name") == "test_prints_oddities[2xgloo]")

    assert "red" in case.find("failure").get("message")
    assert "\x1b" not in case.find("failure").text


def test_processes_left_behind_are_named(ended):
    assert any("sleep 600" in note for note in ended.run.notes)


def test_the_exit_code_and_the_terminal_name_the_culprits(ended):
    assert 1 == ended.exit_code
    assert "FAILED" in ended.output
    assert "rank 1 of 2 was killed by SIGSEGV in call" in ended.output


def test_junit_agrees_with_the_journal(ended):
    run = ended.run
    cases = list(ended.junit().iter("testcase"))

    assert len(run.tests) == len(cases)
    red = {
        case.get("name")
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    assert {test.test.name for test in run.bad} == red
