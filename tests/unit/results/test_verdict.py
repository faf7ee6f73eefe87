"""The verdict, case by case: what N ranks did, and what the test comes to."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.model import Cause, Outcome, RankEnd, RankRecord, TestCase, WorldShape
from disttest.results.verdict import judge

TEST = TestCase(
    nodeid="t.py::test_x[2xgloo]",
    slug="s",
    classname="t",
    name="test_x[2xgloo]",
    file="t.py",
    line=1,
    suite="t",
    world=WorldShape(size=2, backend="gloo"),
    timeout_s=30,
)


def verdict(*ranks, cancelled="", may_differ=False):
    test = msgspec.structs.replace(TEST, ranks_may_differ=may_differ)
    return judge(test, ranks, attempt=1, started_at_s=0.0, duration_s=1.0, world_id="w1", cancelled=cancelled)


def reported(rank, outcome, **more):
    return RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=outcome, **more)


def passed(rank):
    return reported(rank, Outcome.PASSED)


def failed(rank, after_s, message="ValueError: no", **more):
    return reported(rank, Outcome.FAILED, phase="call", failed_after_s=after_s, message=message, **more)


def killed(rank, **more):
    return RankRecord(rank=rank, end=RankEnd.KILLED, phase="call", message="was ended by disttest", **more)


def hung(rank, **more):
    return killed(rank, hung=True, **more)


LOST = "RuntimeError: Connection closed by peer"


def test_the_rank_that_did_not_join_is_the_culprit_of_one_that_has_lost_a_peer():
    result = verdict(failed(0, 0.1, LOST, because_of=(1,), details="traceback of rank 0"), passed(1))

    assert result.message == (
        f"rank 1 of 2 did not join a call of rank 0: rank 1 had finished the test; rank 0 then failed: {LOST}"
    )
    assert (Outcome.FAILED, 1, (0,)) == (result.outcome, result.culprit, result.victims)
    assert result.details == "traceback of rank 0"


def test_an_exception_in_flight_is_the_reason_of_a_lost_peer():
    result = verdict(failed(0, 0.1, LOST, because_of=(1,)), killed(1, in_flight="KeyError: 'a' at t.py:3"))

    assert result.message.startswith("rank 1 of 2 raised KeyError: 'a' at t.py:3")
    assert result.culprit == 1


def test_ranks_that_waited_for_each_other_have_no_other_culprit():
    result = verdict(failed(0, 0.1, LOST, because_of=(1,)), failed(1, 0.2, f"{LOST}: 1", because_of=(0,)))

    assert (result.culprit, result.message) == (0, f"rank 0 of 2 failed: {LOST}")


@pytest.mark.parametrize(
    "words",
    [
        "Connection closed by peer [127.0.0.1]:1764",
        "Timed out waiting 3000ms for recv operation to complete",
        "Application timeout caused pair closure",
        "[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 3000 ms",
        "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0",
        "wait timeout after 3000ms, keys: /default_pg/0//1",
    ],
)
def test_a_consequence_is_no_culprit_beside_a_failure_of_another_rank(words):
    assert verdict(failed(0, 0.1, f"RuntimeError: {words}"), failed(1, 3.0)).culprit == 1


def test_an_exception_in_flight_comes_before_the_hang():
    result = verdict(hung(0), hung(1, in_flight="ValueError: no at t.py:3", details="Traceback"))

    assert result.message.startswith(
        "rank 1 of 2 raised ValueError: no at t.py:3, and had not handled it yet: "
    )
    assert (result.outcome, result.culprit, result.details) == (Outcome.FAILED, 1, "Traceback")


def test_an_exception_that_all_ranks_are_handling_makes_no_culprit():
    result = verdict(*(hung(rank, in_flight="ImportError: fast at t.py:3") for rank in range(2)))

    assert "ImportError: fast" in result.message
    assert result.culprit is None


def test_a_failure_that_could_not_be_rendered_has_a_note():
    result = verdict(passed(0), killed(1, outcome=Outcome.FAILED, failed_after_s=1.0, unrendered=True))

    assert any(note.startswith("rank 1 could not render its report") for note in result.notes)


def signalled(rank, after_s, signum=11):
    message = "was killed by SIGSEGV in call, before it reported"
    return RankRecord(
        rank=rank, end=RankEnd.SIGNALLED, phase="call", signal=signum, failed_after_s=after_s, message=message
    )


def exited(rank, code, after_s=0.1):
    message = f"exited with code {code} in call, before it reported"
    return RankRecord(
        rank=rank, end=RankEnd.EXITED, phase="call", exit_code=code, failed_after_s=after_s, message=message
    )


def failed_then_exited(rank, after_s, message="ValueError: no"):
    words = f"{message}; then it exited with code 70 in teardown"
    return msgspec.structs.replace(failed(rank, after_s, words), end=RankEnd.EXITED, exit_code=70)


def test_ranks_that_crash_alike_are_told_together():
    result = verdict(signalled(0, 0.1), signalled(1, 0.2))

    assert "each of the 2 ranks was killed by SIGSEGV in call, before it reported" == result.message
    assert (Outcome.ERROR, None, ()) == (result.outcome, result.culprit, result.victims)


def test_a_rank_that_aborts_since_its_peer_is_gone_is_no_second_culprit():
    message = "was killed by SIGABRT in call, before it reported: Connection closed by peer"
    result = verdict(signalled(0, 0.1), msgspec.structs.replace(signalled(1, 0.2), message=message))

    assert (0, (1,)) == (result.culprit, result.victims)


GLOO = "was killed by SIGABRT in call, before it reported: gloo::EnforceNotMet: op.preamble.length <= op.nbytes. 8 vs 4."
STACK = """Thread (most recent call first):
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/venv/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/repo/test_step.py", line 28 in test_shape"""


def test_tensors_that_differ_in_size_are_named_and_not_gloos_words():
    aborted = msgspec.structs.replace(signalled(0, 0.1, 6), message=GLOO, stacks=STACK)
    result = verdict(aborted, failed(1, 0.2, "RuntimeError: Connection reset by peer"))

    assert result.message == (
        "rank 0 of 2 was sent 8 bytes where it expected 4, in all_reduce at test_step.py:28: "
        "the ranks' tensors differ in size (gloo then aborted its process)"
    )


DISAGREE = "ranks disagree at collective #1 of group default: rank 0 called …, rank 1 called …"


def test_what_ranks_called_leads_where_the_board_knew_it():
    words = f"was killed by SIGABRT in call, before it reported: {DISAGREE}"
    aborted = msgspec.structs.replace(signalled(0, 0.1, 6), message=words, differing_calls=DISAGREE)

    for odd, culprit in ((), None), ((1,), 1):
        result = verdict(msgspec.structs.replace(aborted, because_of=odd), passed(1))

        assert f"{DISAGREE} (gloo then aborted rank 0)" == result.message
        assert (Outcome.ERROR, culprit) == (result.outcome, result.culprit)


def test_an_exception_with_the_words_of_differing_calls_is_an_exception():
    words = f"was killed by SIGABRT in call, before it reported: std::runtime_error: {DISAGREE}"
    result = verdict(msgspec.structs.replace(signalled(0, 0.1, 6), message=words), passed(1))

    assert (f"rank 0 of 2 {words}", 0) == (result.message, result.culprit)


def test_gloos_words_stand_where_the_place_is_not_known():
    result = verdict(msgspec.structs.replace(signalled(0, 0.1, 6), message=GLOO), passed(1))

    assert f"rank 0 of 2 {GLOO}" == result.message


def test_a_failure_that_a_death_followed_is_a_failure():
    result = verdict(passed(0), failed_then_exited(1, 0.2))

    assert (Outcome.FAILED, "call", 1) == (result.outcome, result.phase, result.culprit)
    assert "rank 1 of 2 failed: ValueError: no; then it exited with code 70 in teardown" == result.message


def test_who_lost_a_peer_and_then_died_is_its_victim():
    result = verdict(failed_then_exited(0, 0.1, "RuntimeError: Connection closed by peer"), signalled(1, 0.2))

    assert (1, (0,)) == (result.culprit, result.victims)


def test_passes_only_if_all_ranks_pass():
    assert Outcome.PASSED is verdict(passed(0), passed(1)).outcome


@pytest.mark.parametrize(
    "other",
    [
        failed(1, 0.1),
        signalled(1, 0.1),
        exited(1, 0),
        exited(1, 1),
        exited(1, 86),
        killed(1),
        killed(1, hung=True),
    ],
    ids=lambda record: f"{record.end}-{record.exit_code}-{record.hung}",
)
def test_one_rank_without_a_pass_is_never_a_pass(other):
    result = verdict(passed(0), other)

    assert result.outcome.is_bad
    assert result.cause is not None


@given(
    st.lists(st.sampled_from([passed, lambda r: failed(r, 0.1), lambda r: exited(r, 0), killed]), min_size=1)
)
def test_green_means_that_every_rank_was_green(makers):
    ranks = [make(rank) for rank, make in enumerate(makers)]

    good = verdict(*ranks).outcome is Outcome.PASSED
    assert good == all(rank.outcome is Outcome.PASSED for rank in ranks)


def test_the_earliest_failure_is_the_culprit_and_the_others_are_victims():
    result = verdict(failed(0, 0.5), failed(1, 0.2, "KeyError: 'x'"), killed(2))

    assert (1, (0, 2)) == (result.culprit, result.victims)
    assert "rank 1 of 3 failed: KeyError: 'x'" == result.message


def test_a_lost_connection_is_a_symptom_even_when_it_was_noticed_first():
    symptom = failed(0, 0.10, "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:425")
    result = verdict(symptom, signalled(1, 0.15))

    assert (1, (0,)) == (result.culprit, result.victims)
    assert "rank 1 of 2 was killed by SIGSEGV in call, before it reported" == result.message


def test_a_lost_connection_alone_is_a_failure_all_the_same():
    result = verdict(failed(0, 0.1, "RuntimeError: Connection reset by peer"), killed(1))

    assert (Outcome.FAILED, 0) == (result.outcome, result.culprit)


def test_a_failed_rank_that_had_to_be_ended_is_still_the_culprit():
    result = verdict(killed(0), killed(1, outcome=Outcome.FAILED, failed_after_s=0.1))

    assert (Outcome.FAILED, 1) == (result.outcome, result.culprit)


def test_a_fixture_that_fails_is_an_error_in_its_phase():
    broken = reported(1, Outcome.ERROR, phase="setup", message="RuntimeError: no", failed_after_s=0.1)
    result = verdict(killed(0), broken)

    assert (Outcome.ERROR, "setup") == (result.outcome, result.phase)
    assert "rank 1 of 2 failed in setup: RuntimeError: no" == result.message


def test_hangs():
    all_hang = verdict(killed(0, hung=True), killed(1, hung=True))
    one_hangs = verdict(passed(0), killed(1, hung=True))

    assert ("timed out after 30 s: ranks 0, 1 of 2 still in call", None) == (
        all_hang.message,
        all_hang.culprit,
    )
    assert "timed out after 30 s: rank 1 of 2 still in call; rank 0 had finished" == one_hangs.message
    assert 1 == one_hangs.culprit


def test_cancelled_is_infrastructure_unless_somebody_had_failed():
    cancelled = verdict(killed(0), killed(1), cancelled="the run was interrupted")
    guilty = verdict(killed(0), failed(1, 0.1), cancelled="the run was interrupted")

    assert (Outcome.ERROR, Cause.INFRASTRUCTURE) == (cancelled.outcome, cancelled.cause)
    assert "did not finish after 1.0 s: the run was interrupted" == cancelled.message
    assert (Outcome.FAILED, Cause.TEST, 1) == (guilty.outcome, guilty.cause, guilty.culprit)


SKIP, XFAIL, XPASS = Outcome.SKIPPED, Outcome.XFAILED, Outcome.XPASSED


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((SKIP, SKIP), SKIP),
        ((SKIP, Outcome.PASSED), Outcome.FAILED),
        ((XFAIL, Outcome.PASSED), Outcome.FAILED),
        ((XPASS, Outcome.PASSED), Outcome.FAILED),
        ((SKIP, XFAIL), Outcome.FAILED),
        ((XFAIL, XFAIL), XFAIL),
        ((XFAIL, XPASS), XFAIL),
        ((XPASS, XPASS), XPASS),
        ((XFAIL, Outcome.FAILED), Outcome.FAILED),
        ((SKIP, Outcome.FAILED), Outcome.FAILED),
    ],
)
def test_mixtures(outcomes, expected):
    for order in itertools.permutations(outcomes):
        ranks = [reported(rank, outcome, message="why") for rank, outcome in enumerate(order)]
        assert expected is verdict(*ranks).outcome


def test_a_strict_xfail_fails_only_if_no_rank_failed():
    strict = {"message": "[XPASS(strict)] outdated", "strict": True}
    both = verdict(reported(0, XPASS, **strict), reported(1, XPASS, **strict))
    one = verdict(reported(0, XPASS, **strict), reported(1, XFAIL, message="outdated"))
    peer_killed = verdict(killed(0, xfail=True), reported(1, XFAIL, message="outdated"))

    assert Outcome.FAILED is both.outcome
    assert "passed on all 2 ranks, although it is marked as a strict xfail: outdated" == both.message
    assert [XFAIL, XFAIL] == [one.outcome, peer_killed.outcome]


def test_an_xfail_of_one_rank_only_is_no_xfail_of_the_test():
    result = verdict(reported(0, XFAIL, message="mine"), killed(1))

    assert (Outcome.FAILED, Cause.TEST, None) == (result.outcome, result.cause, result.culprit)
    assert "ranks disagree: rank 0 xfailed, rank 1 still running without an xfail mark" == result.message


def test_ranks_that_disagree_are_named_with_what_they_came_to_and_what_to_do():
    result = verdict(reported(0, SKIP, message="odd"), passed(1), reported(2, SKIP, message="odd"), passed(3))

    assert "ranks disagree: ranks 0, 2 skipped, ranks 1, 3 passed" == result.message
    assert "ranks 0, 2 skipped it: odd" in result.notes
    assert result.details.endswith("@pytest.mark.ranks_may_differ")


def test_a_test_without_a_call_did_not_run():
    result = verdict(reported(0, None), reported(1, None))

    assert Outcome.NOT_RUN is result.outcome
    assert result.message.startswith("no test ran: no rank has reported the call (--setup-only")


def test_skipped_subtests_leave_a_pass_where_all_ranks_skip_some():
    mine = reported(0, Outcome.PASSED, subtests_skipped=1)

    assert Outcome.PASSED is verdict(mine, reported(1, Outcome.PASSED, subtests_skipped=2)).outcome
    assert (
        "ranks disagree: rank 0 passed without some subtests, rank 1 passed"
        == verdict(mine, passed(1)).message
    )


def test_notes_tell_skips_and_leaks():
    result = verdict(
        reported(0, SKIP, message="only even ranks"),
        reported(1, Outcome.PASSED, leaks=("environment X: unset became '1'",)),
        reported(2, Outcome.PASSED, leaks=("environment X: unset became '1'",)),
        may_differ=True,
    )

    assert (
        "rank 0 skipped it: only even ranks",
        "ranks 1, 2 leaked environment X: unset became '1'",
    ) == result.notes


AT = '  File "t.py", line {line}, in test_x\n    assert False\n'


@pytest.mark.parametrize("order", [(0.1, 0.2), (0.2, 0.1)])
def test_ranks_that_fail_alike_are_told_together_whichever_was_first(order):
    result = verdict(
        *(failed(rank, after_s, details=AT.format(line=3)) for rank, after_s in enumerate(order))
    )

    assert "all 2 ranks failed: ValueError: no" == result.message
    assert (None, ()) == (result.culprit, result.victims)
    assert AT.format(line=3) == result.details


def test_a_rank_that_failed_alike_and_was_slow_to_leave_is_no_victim():
    slow = msgspec.structs.replace(failed(1, 0.2, details=AT.format(line=3)), end=RankEnd.KILLED)
    result = verdict(failed(0, 0.1, details=AT.format(line=3)), slow)

    assert "all 2 ranks failed: ValueError: no" == result.message
    assert (None, ()) == (result.culprit, result.victims)


def test_values_of_the_same_failure_may_differ_from_rank_to_rank():
    ranks = [
        failed(rank, 0.3 - rank / 10, f"ValueError: {rank}", details=AT.format(line=3)) for rank in range(3)
    ]

    assert "all 3 ranks failed, rank 0: ValueError: 0" == verdict(*ranks).message


@pytest.mark.parametrize(
    "other",
    [
        failed(1, 0.1, "ValueError: other", details=AT.format(line=4)),
        failed(1, 0.1, "KeyError: 'x'", details=AT.format(line=3)),
        failed(1, 0.1, "ValueError: without a place"),
        signalled(1, 0.1),
        killed(1),
        passed(1),
    ],
)
def test_ranks_that_fail_differently_have_a_culprit(other):
    result = verdict(failed(0, 0.2, details=AT.format(line=3)), other)

    assert result.culprit is not None
    assert not result.message.startswith("all")


def test_a_rank_alone_is_not_all_ranks():
    assert "rank 0 of 1 failed: ValueError: no" == verdict(failed(0, 0.1)).message


def test_alike_in_setup():
    ranks = [
        reported(rank, Outcome.ERROR, phase="setup", failed_after_s=0.1, message="KeyError: 'x'")
        for rank in (0, 1)
    ]
    result = verdict(*ranks)

    assert (Outcome.ERROR, "all 2 ranks failed in setup: KeyError: 'x'") == (result.outcome, result.message)
