"""Two budgets, pauses for broken machines only, and failures that stand when nothing follows."""

import msgspec
import pytest

from disttest.limits import RETRY_FIRST_PAUSE_S, RETRY_LONGEST_PAUSE_S
from disttest.model import (
    Cause,
    Isolation,
    Outcome,
    RankEnd,
    RankRecord,
    TestCase,
    TestResult,
    WorldKind,
    WorldShape,
)
from disttest.options.run import RunOptions
from disttest.runtime.controller.retries import Retries
from disttest.runtime.messages.protocol import TestJudged

TEST = TestCase(
    nodeid="t.py::t",
    slug="t",
    classname="t",
    name="t",
    file="t.py",
    line=1,
    suite="t",
    world=WorldShape(size=2, backend="gloo"),
    isolation=Isolation.WARM,
)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def judged(retries, outcome=Outcome.FAILED, cause=Cause.TEST, message="boom"):
    return TestJudged(
        result=TestResult(
            nodeid=TEST.nodeid,
            outcome=outcome,
            cause=cause if outcome.is_bad else None,
            attempt=retries.attempt_of(TEST.nodeid),
            message=message,
        )
    )


def made(retries=0, infra_retries=0):
    clock = Clock()
    return Retries(RunOptions(retries=retries, infra_retries=infra_retries), clock), clock


@pytest.mark.parametrize("kind", list(WorldKind))
def test_a_class_that_starts_its_ranks_may_share_gpus_in_its_next_attempt_too(kind):
    """With fewer GPUs than ranks it would never start otherwise."""
    retries, _ = made(retries=1)
    retries.schedule_retry(msgspec.structs.replace(TEST, kind=kind), judged(retries))

    assert [batch.shares for batch in retries.due()] == [kind is not WorldKind.RANKS]


def test_without_retries_every_failure_counts():
    retries, _ = made()

    assert retries.schedule_retry(TEST, judged(retries)) is None
    assert not retries.open


def test_a_failure_is_tried_again_at_once_alone_in_a_new_world_until_the_budget_is_spent():
    retries, _ = made(retries=2)
    for attempt in (2, 3):
        assert 0 == retries.schedule_retry(TEST, judged(retries))
        (batch,) = retries.due()
        assert ((TEST.nodeid,), TEST.world, Isolation.FRESH) == (batch.nodeids, batch.shape, batch.isolation)
        assert attempt == retries.attempt_of(TEST.nodeid)

    assert retries.schedule_retry(TEST, judged(retries)) is None


def test_batches_have_names_of_their_own():
    retries, _ = made(retries=2)
    names = []
    for _ in range(2):
        retries.schedule_retry(TEST, judged(retries))
        names += [batch.batch_id for batch in retries.due()]

    assert 2 == len(set(names))


def test_a_pass_needs_no_other_attempt():
    retries, _ = made(retries=1)
    retries.schedule_retry(TEST, judged(retries))

    assert retries.schedule_retry(TEST, judged(retries, Outcome.PASSED)) is None
    assert [] == retries.unresolved()


def test_a_broken_machine_has_a_budget_and_growing_pauses_of_its_own():
    retries, clock = made(retries=1, infra_retries=3)
    pauses = []
    for _ in range(3):
        pauses.append(retries.schedule_retry(TEST, judged(retries, Outcome.ERROR, Cause.INFRASTRUCTURE)))
        assert [] == list(retries.due())
        assert pauses[-1] == pytest.approx(retries.due_in_s())
        clock.now_s += pauses[-1]
        assert 1 == len(list(retries.due()))

    assert all(pause <= RETRY_LONGEST_PAUSE_S + RETRY_FIRST_PAUSE_S for pause in pauses)
    assert RETRY_FIRST_PAUSE_S <= pauses[0] < pauses[2]
    assert retries.schedule_retry(TEST, judged(retries, Outcome.ERROR, Cause.INFRASTRUCTURE)) is None
    assert 0 == retries.schedule_retry(TEST, judged(retries))


def test_nothing_waits_for_ever():
    retries, _ = made(retries=1)

    assert float("inf") == retries.due_in_s()


def test_a_skip_after_a_failure_is_still_that_failure():
    retries, _ = made(retries=1)
    retries.schedule_retry(TEST, judged(retries))

    counted = retries.counted(judged(retries, Outcome.SKIPPED, message="no more")).result

    assert (Outcome.FAILED, 2) == (counted.outcome, counted.attempt)
    assert "boom (attempt 2 skipped: no more)" == counted.message


def ranks(*outcomes, **more):
    return tuple(
        RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=outcome, message=f"{outcome}", **more)
        for rank, outcome in enumerate(outcomes)
    )


def of_subtest(outcome, skipped):
    end = RankEnd.REPORTED
    is_bad = outcome.is_bad
    return (RankRecord(rank=0, end=end, outcome=outcome, in_subtest=is_bad, subtests_skipped=skipped),)


def again(retries, outcome, *records):
    attempt = judged(retries, outcome)
    return msgspec.structs.replace(attempt, result=msgspec.structs.replace(attempt.result, ranks=records))


CUT = RankRecord(rank=1, end=RankEnd.KILLED)
"""A rank that was ended because its peer had failed."""
PASSED, FAILED, SKIPPED, XFAILED = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED, Outcome.XFAILED


@pytest.mark.parametrize(
    ("first", "second", "outcome", "stands"),
    [
        (ranks(PASSED, FAILED), ranks(PASSED, PASSED), PASSED, ""),
        (ranks(PASSED, FAILED), ranks(PASSED, SKIPPED), PASSED, "passed without rank 1, which skipped"),
        (ranks(PASSED, FAILED), ranks(PASSED, None), PASSED, "passed without rank 1, which did not run it"),
        (ranks(SKIPPED, FAILED), ranks(SKIPPED, PASSED), PASSED, ""),
        ((*ranks(FAILED), CUT), ranks(PASSED, SKIPPED), PASSED, ""),
        (ranks(PASSED, FAILED), ranks(XFAILED, XFAILED), XFAILED, "failed again, now as expected: xfailed"),
        (ranks(PASSED, FAILED, xfail=True), ranks(XFAILED, XFAILED), XFAILED, ""),
        (ranks(PASSED, FAILED), ranks(PASSED, FAILED), FAILED, ""),
        (of_subtest(FAILED, 0), of_subtest(PASSED, 1), PASSED, "passed on rank 0 without some subtests"),
        (of_subtest(FAILED, 1), of_subtest(PASSED, 1), PASSED, ""),
        (ranks(FAILED), of_subtest(PASSED, 1), PASSED, ""),
    ],
)
def test_an_attempt_that_evades_the_failure_does_not_undo_it(first, second, outcome, stands):
    retries, _ = made(retries=1)
    retries.schedule_retry(TEST, again(retries, FAILED, *first))

    counted = retries.counted(again(retries, outcome, *second)).result

    assert (FAILED if stands else outcome) is counted.outcome
    assert ("boom" + f" (attempt 2 {stands})" * bool(stands)) == counted.message


def test_when_the_run_stops_failures_stand_and_nothing_is_tried_again():
    retries, _ = made(retries=3, infra_retries=3)
    retries.schedule_retry(TEST, judged(retries))
    retries.stop()

    assert not retries.open
    assert [TEST.nodeid] == [nodeid for nodeid, _ in retries.unresolved()]
    cut = judged(retries, Outcome.ERROR, Cause.INFRASTRUCTURE, message="did not finish")
    assert "boom (attempt 2 was cut short)" == retries.counted(cut).result.message
    other = msgspec.structs.replace(TEST, nodeid="other")
    assert retries.schedule_retry(other, judged(retries)) is None


def test_a_failure_whose_world_can_never_start_is_handed_back():
    retries, _ = made(retries=1)
    failure = judged(retries)
    retries.schedule_retry(TEST, failure)

    assert failure == retries.withdraw(TEST.nodeid)
    assert retries.withdraw(TEST.nodeid) is None
