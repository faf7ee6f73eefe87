"""Which ranks must notice that another one is gone."""

import pytest

from disttest.extras.chaos.case import BaselineCall, BaselineRank, Fault, FaultKind
from disttest.extras.chaos.fault_plan import needing
from disttest.model import SeenCall

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
