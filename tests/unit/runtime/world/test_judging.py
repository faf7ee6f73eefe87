"""Which ranks of a main process count: all that were processes; threads only if the main process failed of them."""

import msgspec
import pytest

from disttest.model import MAIN_RANK, Outcome, RankEnd, RankRecord, TestCase, VerdictRule, WorldKind
from disttest.runtime.messages.protocol import PhaseEnded, RanksJoined, TestDone
from disttest.runtime.world.attempt import MainAttempt, RankProgress
from disttest.runtime.world.judging import LENIENT_NOTE, judge_attempt


def judged(
    main,
    *joined,
    kind=WorldKind.THREADS,
    done=None,
    phase="call",
    strict=False,
    later=(),
    rule=VerdictRule.STRICT,
    cancelled="",
):
    test = TestCase(
        nodeid="t.py::T::test_x",
        slug="s",
        classname="t",
        name="test_x",
        file="t.py",
        line=1,
        suite="t",
        kind=kind,
    )
    report = PhaseEnded(
        phase=phase,
        outcome=main,
        duration_s=0.1,
        ended_at_s=1.0,
        message="RuntimeError: Thread 1 …",
        strict=strict,
    )
    progress = RankProgress(
        rank=0,
        pid=1,
        log="main.log",
        phase="call",
        reports=[report, *later],
        joined=list(joined),
        done=done or TestDone(),
    )
    attempt = MainAttempt(test=test, number=1, started_s=0.0, started_at_s=0.0, ranks=[progress])
    attempt.cancelled = cancelled
    return judge_attempt(attempt, world_id="w1", rule=rule)


def ranks(message, *, threads=False, not_awaited=False):
    good = RankRecord(rank=0, end=RankEnd.REPORTED, outcome=Outcome.PASSED, phase="call")
    bad = RankRecord(
        rank=1,
        end=RankEnd.REPORTED,
        outcome=Outcome.FAILED,
        phase="call",
        message=message,
        not_awaited=not_awaited,
    )
    return RanksJoined(records=(good, bad), threads=threads)


def test_threads_speak_for_the_test_that_failed_of_them():
    assert (
        "rank 1 of 2 failed: ValueError: no"
        == judged(
            Outcome.FAILED, ranks("ValueError: caught", threads=True), ranks("ValueError: no", threads=True)
        ).message
    )


def test_threads_whose_failure_was_caught_say_nothing():
    assert Outcome.PASSED is judged(Outcome.PASSED, ranks("ValueError: caught", threads=True)).outcome


@pytest.mark.parametrize("not_awaited", [False, True])
def test_processes_count_whatever_the_main_process_makes_of_them(not_awaited):
    """Such a class counts as one with threads where it has a join_or_run of its own."""
    message = "ValueError: no"
    result = judged(Outcome.PASSED, ranks(message, not_awaited=not_awaited))

    assert result.outcome.is_bad
    assert message in result.message


@pytest.mark.parametrize(
    ("not_awaited", "told"), [(False, "ValueError: no"), (True, "RuntimeError: Thread 1 …")]
)
def test_a_test_that_fails_before_it_waits_for_its_ranks_speaks_for_itself(not_awaited, told):
    result = judged(Outcome.FAILED, ranks("ValueError: no", not_awaited=not_awaited), kind=WorldKind.MAIN)

    assert result.outcome.is_bad
    assert told in result.message


def test_a_test_that_skips_before_it_waits_for_its_ranks_is_skipped():
    """`setUp` of a class may skip after that of its base has started the ranks."""
    result = judged(Outcome.SKIPPED, ranks("not awaited", not_awaited=True), kind=WorldKind.MAIN)

    assert (Outcome.SKIPPED, Outcome.SKIPPED) == (result.outcome, result.torch_outcome)
    assert [MAIN_RANK] == [record.rank for record in result.ranks]


def alike(outcome, size, message=""):
    """A set of ranks that all came to the same."""
    records = (
        RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=outcome, phase="call", message=message)
        for rank in range(size)
    )
    return RanksJoined(records=tuple(records))


def test_of_several_sets_of_ranks_the_last_counts_if_all_ended_well():
    assert 3 == len(judged(Outcome.PASSED, alike(Outcome.PASSED, 1), alike(Outcome.PASSED, 3)).ranks)
    skipped = judged(Outcome.SKIPPED, alike(Outcome.PASSED, 2), alike(Outcome.SKIPPED, 1, "needs two"))
    assert Outcome.SKIPPED is skipped.outcome


def test_of_several_sets_of_ranks_the_first_counts_that_ended_badly():
    result = judged(Outcome.PASSED, ranks("ValueError: no"), alike(Outcome.PASSED, 3))
    assert "rank 1 of 2 failed: ValueError: no" == result.message

    passed, skipped = alike(Outcome.PASSED, 1).records, alike(Outcome.SKIPPED, 2, "why").records[1:]
    differing = RanksJoined(records=passed + skipped)
    result = judged(Outcome.PASSED, differing, alike(Outcome.PASSED, 3))
    assert "ranks disagree: rank 0 passed, rank 1 skipped" == result.message


def test_a_failure_in_used_ranks_is_a_note_on_what_new_ones_came_to():
    used = msgspec.structs.replace(ranks("ValueError: left over"), superseded=True)
    good = RankRecord(rank=0, end=RankEnd.REPORTED, outcome=Outcome.PASSED, phase="call")

    result = judged(Outcome.PASSED, used, RanksJoined(records=(good,)))

    note = "failed in reused ranks, and was run again in new ones (rank 1: ValueError: left over)"
    assert (Outcome.PASSED, (note,), (note,)) == (result.outcome, result.notes, result.superseded)


@pytest.mark.parametrize(
    ("kind", "name"), [(WorldKind.PROCESS, "its process"), (WorldKind.THREADS, "the main process")]
)
def test_a_leak_of_a_process_that_is_no_rank_names_the_process(kind, name):
    result = judged(Outcome.PASSED, kind=kind, done=TestDone(leaks=("process 7",)))

    assert (f"{name} leaked process 7",) == result.notes


PASSED = alike(Outcome.PASSED, 2)
ONE_BAD = ranks("ValueError: no")
TEAR_DOWN = PhaseEnded(phase="teardown", outcome=Outcome.ERROR, duration_s=0.1, ended_at_s=2.0)


@pytest.mark.parametrize(
    ("main", "joined", "more", "expected"),
    [
        (Outcome.FAILED, PASSED, {}, Outcome.FAILED),
        (Outcome.FAILED, alike(Outcome.SKIPPED, 2), {}, Outcome.FAILED),
        (Outcome.ERROR, PASSED, {"phase": "teardown"}, Outcome.FAILED),
        (Outcome.ERROR, ONE_BAD, {"phase": "teardown"}, Outcome.FAILED),
        (Outcome.FAILED, ONE_BAD, {"later": [TEAR_DOWN]}, Outcome.FAILED),
        (Outcome.FAILED, ONE_BAD, {"rule": VerdictRule.TORCH}, Outcome.FAILED),
        (Outcome.FAILED, ranks("ValueError: no", not_awaited=True), {}, Outcome.FAILED),
        (Outcome.XPASSED, PASSED, {"strict": True}, Outcome.FAILED),
        (Outcome.FAILED, ONE_BAD, {}, Outcome.PASSED),
        (Outcome.PASSED, ONE_BAD, {}, Outcome.PASSED),
        (Outcome.PASSED, PASSED, {}, Outcome.PASSED),
    ],
)
def test_torchs_rules_pass_no_test_whose_main_process_failed_for_another_reason(main, joined, more, expected):
    of_torch = msgspec.structs.replace(joined, torch_outcome=Outcome.PASSED)
    result = judged(main, of_torch, kind=WorldKind.MAIN, **more)

    assert expected is result.torch_outcome
    assert (LENIENT_NOTE in result.notes) is result.is_false_green_avoided
    assert result.is_false_green_avoided is (result.outcome.is_bad and expected is Outcome.PASSED)


def test_torchs_outcome_of_a_stopped_test_is_unknown():
    waiting = RankRecord(rank=1, end=RankEnd.KILLED, phase="call")
    joined = RanksJoined(records=(PASSED.records[0], waiting), torch_outcome=Outcome.PASSED)
    result = judged(Outcome.FAILED, joined, kind=WorldKind.MAIN, cancelled="stopped by SIGINT")

    assert (Outcome.ERROR, None) == (result.outcome, result.torch_outcome)
    assert LENIENT_NOTE not in result.notes
