"""Which ranks of a main process count: all that were processes; threads only if the main process failed of them."""

import msgspec
import pytest

from disttest.model import Outcome, RankEnd, RankRecord, TestCase, VerdictRule, WorldKind
from disttest.runtime.messages.protocol import PhaseEnded, RanksJoined, TestDone
from disttest.runtime.world.attempt import MainAttempt, RankProgress
from disttest.runtime.world.judging import judge_attempt


def judged(main, *joined, kind=WorldKind.THREADS, done=None):
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
        phase="call", outcome=main, duration_s=0.1, ended_at_s=1.0, message="RuntimeError: Thread 1 …"
    )
    progress = RankProgress(
        rank=0,
        pid=1,
        log="main.log",
        phase="call",
        reports=[report],
        joined=list(joined),
        done=done or TestDone(),
    )
    attempt = MainAttempt(test=test, number=1, started_s=0.0, started_at_s=0.0, ranks=[progress])
    return judge_attempt(attempt, world_id="w1", rule=VerdictRule.STRICT)


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
