"""What the ranks of a harmed test did, against its contract."""

import pytest

from disttest.extras.chaos.case import ChaosCase, ChaosSeen, Contract, Fault, FaultKind, SeenError, Survival
from disttest.extras.chaos.in_world import ObservedRank, judge_case
from disttest.model import Outcome, RankEnd, RankRecord, SeenCall

STRUCK_S = 100.0
LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:1"
SILENT = "RuntimeError: Timed out waiting 2000ms for recv operation to complete"
DEFAULT = Contract()
RECOVERS = Contract(kill=Survival.RECOVERS, raise_=Survival.RECOVERS)


def case(kind="kill", contract=DEFAULT, needing=(0,), numbers=None):
    return ChaosCase(
        contract=contract,
        fault=Fault(kind=FaultKind(kind), rank=1, call=5),
        struck=SeenCall(what="all_reduce #5 of group default", file="/x/test_step.py", line=12),
        calls=12,
        needing=needing,
        numbers=numbers or {},
        limit_s=2.0,
        delay_s=0.5,
    )


VICTIM = ObservedRank(RankRecord(rank=1, end=RankEnd.SIGNALLED, signal=9), None)


def passed(rank=0, *, errors=(), numbers=None, handed=12):
    record = RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=Outcome.PASSED)
    return ObservedRank(record, ChaosSeen(errors=errors, numbers=numbers or {}, handed=handed))


def failed(message, *errors, rank=0, raised=(), failed_at_s=None):
    record = RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=Outcome.FAILED, message=message)
    return ObservedRank(record, ChaosSeen(errors=errors, raised=raised), failed_at_s)


def error(text=LOST, *, began_s=STRUCK_S - 1, after_s=0.1):
    return SeenError(
        what="all_reduce at test_step.py:12", text=text, began_s=began_s, ended_s=STRUCK_S + after_s
    )


def breach(which, *ranks, left=()):
    finding = judge_case(which, ranks, STRUCK_S, left)
    return finding and finding.kind


def test_an_error_of_communication_in_time_keeps_the_contract():
    assert breach(case(), failed(LOST, error()), VICTIM) is None
    assert breach(case("stop"), failed(SILENT, error(SILENT, after_s=2.1)), VICTIM) is None


def test_passing_without_the_rank_that_it_waits_for_is_silence():
    finding = judge_case(case(), [passed(), VICTIM], STRUCK_S)

    assert (
        "rank 1 was killed before all_reduce #5 of group default (its call 5) at test_step.py:12; wanted: ranks that wait "
        "for it raise a communication error within 1 s; but rank 0 passed as if nothing had happened"
    ) == finding.message
    assert ("chaos", "silent", True) == (finding.finder, finding.kind, finding.fails)
    assert [1, 0] == [order.rank for order in finding.orders]


def test_what_was_swallowed_is_named():
    finding = judge_case(case(), [passed(errors=(error(),)), VICTIM], STRUCK_S)

    assert (
        "passed, though all_reduce at test_step.py:12 had raised RuntimeError: Connection closed"
        in finding.message
    )


def test_who_waits_for_nobody_may_pass():
    assert breach(case(needing=()), passed(), VICTIM) is None


def test_a_rank_that_was_ended_has_hung():
    hung = ObservedRank(RankRecord(rank=0, end=RankEnd.KILLED, hung=True), None)

    assert "hung" == breach(case(), hung, VICTIM)
    assert "hung" == breach(case(contract=RECOVERS), hung, VICTIM)


def test_a_rank_that_died_has_told_nothing():
    assert "died" == breach(
        case(), ObservedRank(RankRecord(rank=0, end=RankEnd.EXITED, exit_code=1), None), VICTIM
    )


@pytest.mark.parametrize(
    ("message", "raised", "expected"),
    [
        ("KeyError: 1", ("KeyError: 1", LOST), "handler"),
        ("assert 2 == 4", ("AssertionError: assert 2 == 4",), "other-error"),
        ("PeerLost: a rank is gone", ("PeerLost: a rank is gone", LOST), None),
    ],
)
def test_what_a_rank_makes_of_the_error(message, raised, expected):
    assert expected == breach(case(), failed(message, error(), raised=raised), VICTIM)


def test_late_is_what_comes_after_the_limit_of_the_contract():
    assert "late" == breach(case(), failed(SILENT, error(SILENT, after_s=2.0)), VICTIM)
    assert "late" == breach(case("stop"), failed(SILENT, error(SILENT, after_s=3.5)), VICTIM)


def test_a_broken_connection_on_a_busy_machine_is_not_late():
    assert breach(case(), failed(LOST, error(after_s=1.5)), VICTIM) is None


def test_who_was_busy_when_it_happened_is_not_late():
    assert breach(case(), failed(LOST, error(began_s=STRUCK_S + 5, after_s=5.1)), VICTIM) is None


def test_who_learns_it_from_the_end_of_another_rank_is_not_late():
    first = failed(LOST, error(after_s=0.8), rank=2)

    assert breach(case(needing=(0, 2)), failed(LOST, error(after_s=1.5)), VICTIM, first) is None


def test_who_goes_on_after_the_error_is_late():
    went_on = failed(LOST, error(), failed_at_s=STRUCK_S + 1.5)

    assert "late" == breach(case(), went_on, VICTIM)


def test_who_recovers_has_the_same_numbers():
    numbers = {"0": {"loss": "1.5"}}
    which = case(contract=RECOVERS, numbers=numbers)

    assert breach(which, passed(numbers={"loss": "1.5"}), VICTIM) is None
    assert "wrong-numbers" == breach(which, passed(numbers={"loss": "1.6"}), VICTIM)
    assert "wrong-numbers" == breach(which, passed(), VICTIM)
    assert "failed" == breach(which, failed(LOST, error()), VICTIM)


def test_a_delay_is_for_all_ranks():
    assert breach(case("delay"), passed(), passed(1)) is None
    assert "failed" == breach(case("delay"), passed(), failed("assert False", rank=1))


def test_a_rank_that_raises_may_try_again_but_not_go_on():
    assert breach(case("raise"), passed(), passed(1, handed=12)) is None
    assert "silent" == breach(case("raise"), passed(), passed(1, handed=11))
    assert breach(case("raise"), failed(SILENT, error(SILENT, after_s=2.0)), failed("x", rank=1)) is None


def test_what_is_left_behind_is_told_last():
    assert "left-behind" == breach(case(), failed(LOST, error()), VICTIM, left=["a process"])
    assert "silent" == breach(case(), passed(), VICTIM, left=["a process"])
