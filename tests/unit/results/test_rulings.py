"""The table of verdicts against a model of its own, over all that one to four ranks can come to."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from disttest.model import Outcome, RankEnd, RankRecord, Ruling, TestCase, WorldShape
from disttest.results.rulings import RULES, RankState, disagreement, state_of
from disttest.results.verdict import judge

TEST = TestCase(
    nodeid="t.py::test_x",
    slug="s",
    classname="t",
    name="test_x",
    file="t.py",
    line=1,
    suite="t",
    world=WorldShape(size=2, backend="gloo"),
)
REPORTED, KILLED = RankEnd.REPORTED, RankEnd.KILLED
RECORDS = {
    RankState.PASSED: {"end": REPORTED, "outcome": Outcome.PASSED},
    RankState.PARTLY: {"end": REPORTED, "outcome": Outcome.PASSED, "subtests_skipped": 2},
    RankState.SKIPPED: {"end": REPORTED, "outcome": Outcome.SKIPPED, "message": "not here"},
    RankState.XFAILED: {"end": REPORTED, "outcome": Outcome.XFAILED, "message": "known"},
    RankState.XPASSED: {"end": REPORTED, "outcome": Outcome.XPASSED, "message": "known"},
    RankState.STRICT: {
        "end": REPORTED,
        "outcome": Outcome.XPASSED,
        "message": "[XPASS(strict)] known",
        "strict": True,
    },
    RankState.NOT_RUN: {"end": REPORTED},
    RankState.FAILED: {"end": REPORTED, "outcome": Outcome.FAILED, "failed_after_s": 1.0},
    RankState.ERROR: {"end": REPORTED, "outcome": Outcome.ERROR, "phase": "setup", "failed_after_s": 1.0},
    RankState.DIED: {"end": RankEnd.SIGNALLED, "signal": 11, "failed_after_s": 1.0},
    RankState.HUNG: {"end": KILLED, "hung": True},
    RankState.ENDED: {"end": KILLED},
    RankState.ENDED_XFAIL: {"end": KILLED, "xfail": True},
}
UP_TO_FOUR = [
    states for size in (1, 2, 3, 4) for states in itertools.combinations_with_replacement(RECORDS, size)
]
GREEN = (Outcome.PASSED, Outcome.SKIPPED, Outcome.XFAILED, Outcome.XPASSED)


def judged(states, *, cancelled=False, marked=False):
    return judge(
        msgspec.structs.replace(TEST, ranks_may_differ=marked),
        [RankRecord(rank=rank, **RECORDS[state]) for rank, state in enumerate(states)],
        attempt=1,
        started_at_s=0.0,
        duration_s=1.0,
        world_id="w1",
        cancelled="cancelled" if cancelled else "",
    )


def expected(states, *, cancelled, marked):
    """What a reader of pytest's manual would say, who looks at the ranks one by one and not at a table."""
    count = {state: states.count(state) for state in RankState}
    size = len(states)
    failed = count[RankState.FAILED] + count[RankState.ERROR] + count[RankState.DIED]
    if failed or count[RankState.HUNG]:
        return "bad"
    has_the_mark = sum(
        count[s] for s in (RankState.XFAILED, RankState.XPASSED, RankState.STRICT, RankState.ENDED_XFAIL)
    )
    if count[RankState.XFAILED] and has_the_mark == size:
        return "xfailed"
    if cancelled:
        return "bad"
    if marked and count[RankState.XFAILED] and not count[RankState.ENDED]:
        return "xfailed"
    if count[RankState.ENDED] or count[RankState.ENDED_XFAIL]:
        return "bad"
    if marked:  # those that ran it decide, and what they say is read as pytest reads several tests
        ran = [s for s in states if s not in (RankState.SKIPPED, RankState.NOT_RUN)]
        if not ran:
            return "skipped" if RankState.SKIPPED in states else "not_run"
        if RankState.STRICT in ran:
            return "bad"
        return "xpassed" if RankState.XPASSED in ran else "passed"
    if len(set(states)) > 1:
        return "bad"
    alone = {
        RankState.PASSED: "passed",
        RankState.PARTLY: "passed",
        RankState.SKIPPED: "skipped",
        RankState.NOT_RUN: "not_run",
        RankState.XPASSED: "xpassed",
        RankState.STRICT: "bad",
    }
    return alone[states[0]]


def test_every_state_is_what_its_record_is_read_as():
    assert set(RankState) == set(RECORDS)
    assert {state: state_of(RankRecord(rank=0, **record)) for state, record in RECORDS.items()} == {
        state: state for state in RankState
    }


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_all_that_one_to_four_ranks_can_come_to(marked, cancelled):
    wrong = []
    for states in UP_TO_FOUR:
        outcome = judged(states, cancelled=cancelled, marked=marked).outcome
        said = "bad" if outcome.is_bad else outcome.value
        if said != expected(states, cancelled=cancelled, marked=marked):
            wrong.append((states, said))

    assert [] == wrong
    assert 2379 == len(UP_TO_FOUR)


@pytest.mark.slow("hypothesis draws many examples")
def test_the_order_of_the_ranks_does_not_matter():
    for states in itertools.product(RECORDS, repeat=3):
        for marked in (False, True):
            outcomes = {
                judged(order, marked=marked).outcome.is_bad for order in itertools.permutations(states)
            }
            assert 1 == len(outcomes), states


@pytest.mark.parametrize("marked", [False, True])
def test_one_more_rank_never_turns_red_into_green_but_for_an_expected_failure(marked):
    for states in (states for states in UP_TO_FOUR if len(states) < 4):
        if judged(states, marked=marked).outcome.is_bad:
            for more in set(RankState) - {RankState.XFAILED}:
                assert judged((*states, more), marked=marked).outcome.is_bad, (states, more)


def test_each_row_decides_something_and_the_last_one_always_could():
    used = {
        next(
            number
            for number, rule in enumerate(RULES)
            if rule.applies(set(states), cancelled=cancelled, may_differ=marked)
        )
        for states in UP_TO_FOUR
        for cancelled in (False, True)
        for marked in (False, True)
    }

    assert set(range(len(RULES))) == used
    assert Ruling.DISAGREED is RULES[-1].ruling
    assert RULES[-1].applies(set(RankState), cancelled=False, may_differ=False)


def test_only_ranks_that_ended_well_disagree():
    def words(*states, **how):
        records = [RankRecord(rank=rank, **RECORDS[state]) for rank, state in enumerate(states)]
        return disagreement(records, **({"may_differ": False} | how))

    assert "ranks disagree: rank 0 skipped, rank 1 passed" == words(RankState.SKIPPED, RankState.PASSED)
    assert "" == words(RankState.SKIPPED, RankState.PASSED, may_differ=True)
    assert "" == words(RankState.SKIPPED, RankState.FAILED)
    assert "" == words(RankState.SKIPPED, RankState.SKIPPED)
    assert "" == disagreement([], may_differ=False)


def test_a_skip_is_not_taken_for_a_test_that_did_not_run():
    assert Outcome.SKIPPED is judged([RankState.SKIPPED, RankState.SKIPPED]).outcome
    assert Outcome.NOT_RUN is judged([RankState.NOT_RUN, RankState.NOT_RUN]).outcome
    assert Outcome.NOT_RUN is not judged([RankState.NOT_RUN, RankState.PASSED]).outcome


def test_a_strict_xfail_among_ranks_that_may_differ_names_the_rank_that_passed():
    message = judged([RankState.SKIPPED, RankState.STRICT], marked=True).message
    assert "passed on rank 1 of 2, although it is marked as a strict xfail: known" == message
