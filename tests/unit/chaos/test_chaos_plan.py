"""Plans of faults, made from a baseline run: for which ranks, and which others must notice that one is gone."""

from __future__ import annotations

import msgspec
import pytest

from disttest.errors import UsageError
from disttest.extras.chaos.case import (
    NAME,
    BaselineCall,
    BaselineRank,
    ChaosCase,
    Contract,
    Fault,
    FaultKind,
    Survival,
)
from disttest.extras.chaos.command import parse_fault, parse_kinds
from disttest.extras.chaos.fault_items import contract_of
from disttest.extras.chaos.fault_plan import Wanted, draw, needing
from disttest.model import Outcome, Section, SeenCall, TestCase, TestResult, WorldShape

ALL = (0, 1, 2)


def call(op, seq, *, members=ALL, group="0", **more):
    return BaselineCall(op=op, group=group, members=members, seq=seq, shown=SeenCall(what=op), **more)


def everywhere(*calls):
    return [BaselineRank(rank=rank, calls=calls) for rank in ALL]


def kill(rank, number, *, during=False):
    return Fault(kind=FaultKind.KILL, rank=rank, call=number, during=during)


@pytest.mark.parametrize(
    ("op", "root", "victim", "expected"),
    [
        ("allreduce", None, 1, (0, 2)),
        ("barrier", None, 0, (1, 2)),
        ("broadcast", 1, 1, (0, 2)),
        ("broadcast", 0, 1, ()),
        ("scatter", 0, 0, (1, 2)),
        ("reduce", 0, 1, (0,)),
        ("gather", 0, 0, ()),
    ],
)
def test_who_waits_for_whom_in_a_collective(op, root, victim, expected):
    assert expected == needing(everywhere(call(op, 1, root=root)), kill(victim, 1))


def test_a_later_call_counts_and_an_earlier_one_does_not():
    ranks = everywhere(call("allreduce", 1), call("broadcast", 2, root=0), call("barrier", 3))

    assert (0, 2) == needing(ranks, kill(1, 2))
    assert (0, 2) == needing(ranks, kill(1, 3))


def test_what_strikes_during_a_call_has_sent_it():
    ranks = everywhere(call("allreduce", 1), call("allreduce", 2))

    assert (0, 2) == needing(ranks, kill(1, 1, during=True))
    assert () == needing(ranks, kill(1, 2, during=True))


def test_ranks_outside_of_the_group_need_nobody_in_it():
    pair = call("allreduce", 1, group="1", members=(0, 1))
    ranks = [BaselineRank(rank=0, calls=(pair,)), BaselineRank(rank=1, calls=(pair,)), BaselineRank(rank=2)]

    assert (0,) == needing(ranks, kill(1, 1))


def test_who_receives_needs_who_sends():
    send = call("send", 1, peer=1, tag=7)
    recv = call("recv", 1, peer=0, tag=7)
    ranks = [BaselineRank(rank=0, calls=(send,)), BaselineRank(rank=1, calls=(recv,)), BaselineRank(rank=2)]

    assert (1,) == needing(ranks, kill(0, 1))
    assert () == needing(ranks, kill(1, 1))


TEST = TestCase(
    nodeid="test_x.py::test_step[2xgloo]",
    slug="x",
    classname="test_x",
    name="test_step[2xgloo]",
    file="test_x.py",
    line=1,
    suite="test_x",
    world=WorldShape(size=2, backend="gloo"),
    data={NAME: msgspec.to_builtins(ChaosCase(contract=Contract(within_s=3.0)))},
)
CALLS = tuple(
    BaselineCall(
        op="allreduce", group="0", members=(0, 1), seq=seq, shown=SeenCall(what=f"all_reduce #{seq}")
    )
    for seq in (1, 2, 3)
)
UNHARMED = TestResult(
    nodeid=TEST.nodeid,
    outcome=Outcome.PASSED,
    duration_s=0.5,
    sections={
        NAME: Section(
            data=msgspec.to_builtins(
                (
                    BaselineRank(rank=0, calls=CALLS, numbers={"loss": "1.5"}),
                    BaselineRank(rank=1, calls=CALLS[:2]),
                )
            )
        )
    },
)


def faults(wanted):
    return [str(case.fault) for case in draw(TEST, UNHARMED, wanted).cases]


def test_each_kind_in_each_call_of_each_rank():
    assert ["kill:0:1", "kill:0:2", "kill:0:3", "kill:1:1", "kill:1:2"] == faults(
        Wanted(kinds=(FaultKind.KILL,))
    )
    assert 4 * 5 == len(faults(Wanted()))


def test_a_case_has_what_it_takes_to_strike_and_to_judge():
    (case,) = draw(TEST, UNHARMED, Wanted(faults=(parse_fault("delay:0:2"),), limit_s=4.0, delay_s=1.0)).cases

    assert ("all_reduce #2", 3, (1,)) == (case.struck.what, case.calls, case.needing)
    assert {"0": {"loss": "1.5"}} == case.numbers
    assert case.timeout_s > 2 * 4.0 + 1.0 + 3.0


def test_a_sample_is_the_same_with_the_same_seed():
    first, again, other = (Wanted(samples=6, seed=seed) for seed in (1, 1, 2))

    assert faults(first) == faults(again) != faults(other)
    assert (6, 20) == (len(faults(first)), draw(TEST, UNHARMED, first).of)


@pytest.mark.parametrize(
    ("fault", "said"), [("kill:2:1", "has no rank 2"), ("kill:1:3", "rank 1 of .* issues 2 calls")]
)
def test_a_fault_that_could_not_strike_is_refused(fault, said):
    with pytest.raises(UsageError, match=said):
        faults(Wanted(faults=(parse_fault(fault),)))


@pytest.mark.parametrize("text", ["kill:1:5", "stop:0:1:during", "raise:3:12", "delay:2:4"])
def test_a_fault_in_words_and_back(text):
    assert text == str(parse_fault(text))


@pytest.mark.parametrize("text", ["kill", "kill:1", "crash:1:1", "kill:a:1", "kill:1:1:after", "kill:1:-1"])
def test_what_is_no_fault_is_refused(text):
    with pytest.raises(UsageError, match="give KIND:RANK:CALL"):
        parse_fault(text)


def test_kinds_in_their_own_order():
    assert (FaultKind.KILL, FaultKind.DELAY) == parse_kinds("delay, kill")
    with pytest.raises(UsageError, match="'pause' is not a kind of fault"):
        parse_kinds("pause")


def test_a_contract_by_its_mark():
    assert Contract() == contract_of((), {})
    assert Survival.RECOVERS is contract_of((), {"recover": True}).of(FaultKind.RAISE)
    mixed = contract_of((), {"recover": True, "stop": "timeout", "within_s": 2})
    assert (Survival.RECOVERS, Survival.TIMEOUT, 2.0) == (mixed.kill, mixed.stop, mixed.within_s)
    assert mixed == msgspec.json.decode(msgspec.json.encode(mixed), type=Contract)


@pytest.mark.parametrize(
    "given", [{"kill": "survives"}, {"pause": "passes"}, {"within_s": 0}, {"within_s": "soon"}]
)
def test_a_mark_that_makes_no_sense_is_refused(given):
    with pytest.raises(UsageError, match="chaos mark"):
        contract_of((), given)


def test_a_fault_is_hashable_as_part_of_a_set():
    assert {Fault(kind=FaultKind.KILL, rank=0, call=1)} == {parse_fault("kill:0:1")}
