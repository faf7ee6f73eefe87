"""Which bytes two views share, when a call counts as over, and how a race is told."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.extras.sanitizers.order.stream import CallSignature, StreamGroup
from disttest.extras.sanitizers.race.race_judge import judge_races, judge_reports
from disttest.extras.sanitizers.race.race_recorder import edges_of, is_between
from disttest.extras.sanitizers.race.races import HANDED_OUT, Race, RaceKind, Races, SourceLine
from disttest.extras.sanitizers.race.windows import Policy, make_view, share_bytes
from disttest.model import WindowEdge
from disttest.observe import Call, Group, Site, Spec, Wait, WaitKind

_dims = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, 3, 4, 5, 8, 12])), max_size=3)
_views = st.tuples(st.integers(0, 30), st.sampled_from([1, 2, 4, 8]), _dims)


def bytes_of(start, item, dims):
    places = itertools.product(*(range(size) for size, _ in dims))
    begins = (
        start + item * sum(at * stride for at, (_, stride) in zip(place, dims, strict=True))
        for place in places
    )
    return {byte for begin in begins for byte in range(begin, begin + item)}


def view(start, item, dims):
    return make_view(start, item, [size for size, _ in dims], [stride for _, stride in dims])


@given(_views, _views)
def test_views_share_the_bytes_that_both_have(first, second):
    views = view(*first), view(*second)
    shares = None not in views and share_bytes(*views)

    assert bool(bytes_of(*first) & bytes_of(*second)) is shares


def test_large_views_that_lie_between_each_other_take_no_time():
    even, odd = view(0, 4, [(10**9, 2)]), view(4, 4, [(10**9, 2)])
    left, right = view(0, 4, [(10**6, 1000), (500, 1)]), view(2000, 4, [(10**6, 1000), (500, 1)])

    assert not share_bytes(even, odd)
    assert not share_bytes(left, right)
    assert share_bytes(even, view(8, 4, [(10**9, 2)]))


_ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda at: (at[0], at[0] + at[1])))


@given(_ranges)
def test_an_address_is_between_the_edges_of_what_some_range_covers(ranges):
    covered = {address for start, end in ranges for address in range(start, end)}

    edges = edges_of(ranges)

    assert covered == {address for address in range(40) if is_between(edges, address)}


def call(n=1, *, backend="gloo", name="0", peer=None, **facts):
    group = Group(name=name, description="", ranks=(0, 1), backend=backend, timeout_s=None)
    facts = {"by_cpp": False, "in_backward": False, "site": Site(None, 0), **facts}
    return Call(
        n=n, op="allreduce", group=group, seq=n, peer=peer, tag=0, root=None, reduce_op="SUM", is_async=True,
        timeout_s=None, inputs=(), outputs=(), thread=1, **facts,
    )  # fmt: skip


def wait_for(waited, kind=WaitKind.WORK):
    return Wait(n=1, kind=kind, call=waited, keys=(), timeout_s=None, site=Site(None, 0), thread=1)


@pytest.mark.parametrize(
    ("pending", "waited", "as_nccl", "is_over"),
    [
        (call(1), call(1), False, True),
        (call(1), call(2), False, False),
        (call(1), call(2), True, True),
        (call(2), call(1), True, False),
        (call(1, backend="nccl"), call(2, backend="nccl"), False, True),
        (call(1), call(2, name="other"), True, False),
        (call(1, peer=1), call(2), True, False),
    ],
)
def test_when_a_wait_ends_a_call(pending, waited, as_nccl, is_over):
    assert Policy(as_nccl=as_nccl).is_over(pending, wait_for(waited)) is is_over


def test_a_backward_pass_ends_what_cpp_has_issued_in_it():
    policy, end = Policy(as_nccl=False), wait_for(None, WaitKind.BACKWARD)

    assert policy.is_over(call(by_cpp=True, in_backward=True), end)
    assert not policy.is_over(call(in_backward=True), end)


def race(**facts):
    group = StreamGroup(name="0", description="default", ranks=(0, 1))
    signature = CallSignature(
        op="allreduce",
        group=group,
        reduce_op="SUM",
        inputs=(Spec("float32", (4,)),),
        file="/t/test_x.py",
        line=3,
    )
    known = {"kind": RaceKind.OUTPUT_READ, "what": "sum", "at": SourceLine(file="/t/test_x.py", line=4)}
    return Race(call=signature, seq=1, **{**known, **facts})


def test_the_same_race_on_two_ranks_is_told_once():
    waited = race(waited=SourceLine(file="/t/test_x.py", line=5))

    (finding,) = judge_races({0: Races(races=(waited,)), 1: Races(races=(waited,))})

    assert finding.message == (
        "ranks 0, 1 read the result of all_reduce SUM of float32[4] at test_x.py:3 while it is pending: "
        "sum at test_x.py:4; the wait comes at test_x.py:5"
    )
    assert [order.rank for order in finding.orders] == [0, 1]
    assert [each.window for each in finding.orders[0].calls] == [
        WindowEdge.OPENS, WindowEdge.INSIDE, WindowEdge.CLOSES
    ]  # fmt: skip


def test_what_was_handed_out_has_changed_and_nobody_waits():
    (finding,) = judge_races(
        {1: Races(races=(race(kind=RaceKind.INPUT_WRITTEN, what=HANDED_OUT, in_other_thread=True),))}
    )

    assert finding.message == (
        "rank 1 writes the input of all_reduce SUM of float32[4] at test_x.py:3 while it is pending: its memory has "
        "changed since numpy got it at test_x.py:4 in another thread; nothing in the test waits for it"
    )
    assert [each.window for each in finding.orders[0].calls] == [
        WindowEdge.OPENS,
        WindowEdge.INSIDE,
        WindowEdge.INSIDE,
    ]


def test_nothing_follows_where_a_call_has_raised():
    assert judge_races({0: Races(races=(race(),)), 1: Races(doubtful=True)}) == ()


def test_what_is_too_much_to_keep_is_counted():
    judgement = judge_reports({2: msgspec.Raw(msgspec.json.encode(Races(races=(race(),), beyond=1234)))})

    assert judgement.notes == ("sanitizer race: rank 2 has seen 1,234 more races",)
    assert len(judgement.findings) == 1
