"""The comparison of the ranks' calls, on streams made by hand and by hypothesis; and results that a caller throws away."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.extras.sanitizers.order.order_findings import OrderFindingKind
from disttest.extras.sanitizers.order.order_judge import judge_order, limits_of
from disttest.extras.sanitizers.order.order_recorder import is_thrown_away
from disttest.extras.sanitizers.order.stream import CallSignature, GroupMaking, Stream, StreamGroup
from disttest.model import PluginFinding
from disttest.observe import ANY_SOURCE, Spec

FOUR = Spec("float32", (4,))


def group_of(*ranks: int, name: str = "default") -> StreamGroup:
    return StreamGroup(name=name, description=name, ranks=ranks)


PAIR = group_of(0, 1)


def all_reduce(group: StreamGroup = PAIR, **fields: Any) -> CallSignature:
    return CallSignature(
        **{"op": "allreduce", "group": group, "reduce_op": "SUM", "inputs": (FOUR,), **fields}
    )


def send(to: int, group: StreamGroup = PAIR, **fields: Any) -> CallSignature:
    return CallSignature(**{"op": "send", "group": group, "peer": to, "inputs": (FOUR,), **fields})


def recv(frm: int, group: StreamGroup = PAIR, **fields: Any) -> CallSignature:
    return CallSignature(**{"op": "recv", "group": group, "peer": frm, "outputs": (FOUR,), **fields})


def stream(calls: Sequence[CallSignature], **fields: Any) -> Stream:
    known = list(dict.fromkeys(calls))
    return Stream(signatures=tuple(known), calls=tuple(map(known.index, calls)), **fields)


def judge(*ranks: Sequence[CallSignature]) -> tuple[PluginFinding, ...]:
    return judge_order({rank: stream(calls) for rank, calls in enumerate(ranks)})


def only(findings: Sequence[PluginFinding]) -> PluginFinding:
    (finding,) = findings
    return finding


class TestAgreement:
    def test_the_same_calls_are_nothing_to_tell(self):
        calls = [all_reduce(), all_reduce(), CallSignature(op="barrier", group=PAIR)]

        assert judge(calls, calls) == ()

    def test_a_handle_that_all_throw_away_is_told_all_the_same(self):
        assert (
            only(judge([all_reduce(dropped=True)], [all_reduce(dropped=True)])).kind
            == OrderFindingKind.NEVER_WAITED
        )

    def test_a_send_to_itself_is_nobody_elses_business(self):
        assert judge([send(0), recv(0)], []) == ()

    def test_who_is_in_no_group_calls_nothing(self):
        assert judge([all_reduce()], [all_reduce()], []) == ()

    def test_cpp_does_not_tell_its_reduction(self):
        assert judge([all_reduce(reduce_op="")], [all_reduce(reduce_op="MAX")]) == ()

    def test_gathering_into_a_list_meets_gathering_into_a_tensor(self):
        parts = CallSignature(op="allgather", group=PAIR, inputs=(FOUR,), outputs=(FOUR, FOUR))
        whole = CallSignature(
            op="allgather_base", group=PAIR, inputs=(FOUR,), outputs=(Spec("float32", (8,)),)
        )

        assert judge([parts], [whole]) == ()

    @pytest.mark.parametrize("op", ["alltoall_base", "alltoall"])
    def test_an_exchange_may_be_uneven(self, op):
        calls = [
            CallSignature(op=op, group=PAIR, inputs=(Spec("float32", (n,)),), outputs=(FOUR,)) for n in (3, 5)
        ]

        assert judge(*[[call] for call in calls]) == ()

    def test_who_has_nothing_to_exchange_has_no_dtype(self):
        call = CallSignature(op="alltoall", group=PAIR, inputs=(FOUR,), outputs=(FOUR,))

        assert judge([call], [CallSignature(op="alltoall", group=PAIR)]) == ()

    def test_bytes_may_be_received_as_bytes(self):
        assert judge([send(1)], [recv(0, outputs=(Spec("uint8", (16,)),))]) == ()

    def test_a_group_may_be_described_otherwise_elsewhere(self):
        other = StreamGroup(name="default", description="mine", ranks=(0, 1))

        assert judge([all_reduce()], [all_reduce(other)]) == ()

    def test_a_group_of_other_processes_is_left_alone(self):
        assert judge([all_reduce(group_of(0, 7))], []) == ()

    def test_nothing_follows_from_calls_that_have_raised(self):
        streams = {0: stream([all_reduce()], doubtful=True), 1: stream([])}

        assert judge_order(streams) == ()


class TestMismatch:
    @pytest.mark.parametrize(
        ("here", "there", "words"),
        [
            (all_reduce(), all_reduce(reduce_op="MAX"), ("SUM", "MAX")),
            (all_reduce(), all_reduce(inputs=(Spec("int32", (4,)),)), ("float32[4]", "int32[4]")),
            (
                all_reduce(inputs=(Spec("float32", (2, 3)),)),
                all_reduce(inputs=(Spec("float32", (3, 2)),)),
                ("float32[2, 3]", "float32[3, 2]"),
            ),
            (
                CallSignature(op="broadcast", group=PAIR, root=0, inputs=(FOUR,)),
                CallSignature(op="broadcast", group=PAIR, root=1, inputs=(FOUR,)),
                ("from rank 0", "from rank 1"),
            ),
            (all_reduce(), CallSignature(op="barrier", group=PAIR), ("all_reduce SUM", "barrier")),
        ],
    )
    def test_what_differs_is_told_with_both_lines(self, here, there, words):
        finding = only(judge([at(here, "a.py", 3)], [at(there, "a.py", 5)]))

        assert finding.kind == OrderFindingKind.MISMATCH
        assert finding.message.startswith("ranks disagree at collective #1 of group default: rank 0 called ")
        for part in (*words, "a.py:3", "a.py:5"):
            assert part in finding.message

    def test_the_odd_one_of_three_is_named(self):
        group = group_of(0, 1, 2)
        finding = only(judge([all_reduce(group)], [all_reduce(group)], [all_reduce(group, reduce_op="MAX")]))

        assert "ranks 0, 1 called all_reduce SUM" in finding.message
        assert "rank 2 called all_reduce MAX" in finding.message

    def test_lists_are_compared_part_by_part(self):
        wide, tall = Spec("float32", (2, 3)), Spec("float32", (3, 2))
        calls = [CallSignature(op="allgather", group=PAIR, inputs=(s,), outputs=(s, s)) for s in (wide, tall)]

        assert only(judge(*[[call] for call in calls])).kind == OrderFindingKind.MISMATCH

    def test_a_line_in_a_loop_is_told_once(self):
        assert (
            only(judge([all_reduce()] * 50, [all_reduce(reduce_op="MAX")] * 50)).kind
            == OrderFindingKind.MISMATCH
        )

    def test_after_other_operations_nothing_can_be_compared(self):
        barrier = CallSignature(op="barrier", group=PAIR)

        assert (
            only(judge([all_reduce(), barrier, barrier], [barrier, all_reduce()])).kind
            == OrderFindingKind.MISMATCH
        )

    @pytest.mark.parametrize("taken", [Spec("int32", (4,)), Spec("float32", (8,))])
    def test_a_message_is_received_as_it_was_sent(self, taken):
        assert only(judge([send(1)], [recv(0, outputs=(taken,))])).kind == OrderFindingKind.MISMATCH


class TestExtra:
    def test_a_collective_that_one_rank_has_not_called(self):
        finding = only(judge([all_reduce()], [all_reduce(), at(all_reduce(), "a.py", 9)]))

        assert finding.kind == OrderFindingKind.EXTRA
        assert "rank 1 called all_reduce SUM of float32[4] at a.py:9, rank 0 never did" in finding.message

    def test_its_handle_is_no_second_finding(self):
        assert only(judge([], [at(all_reduce(dropped=True), "a.py", 9)])).kind == OrderFindingKind.EXTRA

    def test_a_message_that_nobody_receives(self):
        assert "rank 1 never receives it" in only(judge([send(1)], [])).message

    def test_what_is_taken_from_anybody_is_not_counted(self):
        anybody = CallSignature(op="recv_any_source", group=PAIR, peer=ANY_SOURCE, outputs=(FOUR,))

        assert judge([send(1), send(1)], [anybody, recv(0)]) == ()

    def test_a_stream_that_was_cut_has_no_end(self):
        streams = {0: stream([all_reduce()], beyond=5), 1: stream([all_reduce(), all_reduce()])}

        assert judge_order(streams) == ()
        assert limits_of(streams) == ("order was compared for the first 1 calls; rank 0 has issued 5 more",)


class TestOrder:
    first, second = group_of(0, 1, name="first"), group_of(0, 1, name="second")

    def test_two_groups_in_opposite_order(self):
        a, b = at(all_reduce(self.first), "a.py", 1), at(all_reduce(self.second), "a.py", 2)
        finding = only(judge([a, b], [b, a]))

        assert finding.kind == OrderFindingKind.GROUP_ORDER
        assert (
            "rank 0 calls all_reduce #1 of group first at a.py:1, then all_reduce #1 of group second at a.py:2"
            in (finding.message)
        )
        assert [[call.decides for call in order.calls] for order in finding.orders] == [[True, True]] * 2

    def test_three_groups_in_a_circle(self):
        groups = [group_of(0, 1, name="x"), group_of(1, 2, name="y"), group_of(0, 2, name="z")]
        x, y, z = map(all_reduce, groups)

        assert only(judge([x, z], [y, x], [z, y])).kind == OrderFindingKind.GROUP_ORDER

    def test_other_threads_have_orders_of_their_own(self):
        a, b = all_reduce(self.first), all_reduce(self.second, thread=1)

        assert judge([a, b], [b, a]) == ()

    def test_a_message_crosses_a_collective(self):
        assert (
            only(judge([send(1), all_reduce()], [all_reduce(), recv(0)])).kind == OrderFindingKind.P2P_ORDER
        )

    def test_tags_in_opposite_order(self):
        one, two = {"tag": 1}, {"tag": 2}
        finding = only(judge([send(1, **one), send(1, **two)], [recv(0, **two), recv(0, **one)]))

        assert finding.kind == OrderFindingKind.P2P_ORDER
        assert "send to rank 1 with tag 2" in finding.message

    def test_both_send_first(self):
        assert only(judge([send(1), recv(1)], [send(0), recv(0)])).kind == OrderFindingKind.P2P_CYCLE

    def test_a_ring_of_sends(self):
        ring = group_of(0, 1, 2)
        calls = [[send((rank + 1) % 3, ring), recv((rank - 1) % 3, ring)] for rank in range(3)]

        assert only(judge(*calls)).kind == OrderFindingKind.P2P_CYCLE

    def test_a_batch_has_no_order(self):
        batch = {"batched": True}

        assert judge([send(1, **batch), recv(1, **batch)], [send(0, **batch), recv(0, **batch)]) == ()

    def test_each_cycle_of_lines_is_told_once(self):
        a, b = all_reduce(self.first), all_reduce(self.second)

        assert only(judge([a, b] * 50, [b, a] * 50)).kind == OrderFindingKind.GROUP_ORDER


class TestNeverWaited:
    def test_a_handle_that_is_thrown_away(self):
        call = at(all_reduce(dropped=True), "a.py", 9)
        finding = only(judge([call], [call]))

        assert finding.kind == OrderFindingKind.NEVER_WAITED
        assert finding.message == (
            "ranks 0, 1 never wait for all_reduce SUM of float32[4] at a.py:9: its handle is discarded"
        )


def at(call: CallSignature, file: str, line: int) -> CallSignature:
    return msgspec.structs.replace(call, file=f"/repo/{file}", line=line)


@st.composite
def programs(draw: st.DrawFn) -> list[list[CallSignature]]:
    """What three ranks do that all go through one list of events in order: it fits together by construction."""
    groups = [group_of(0, 1, 2), group_of(0, 1, name="a"), group_of(1, 2, name="b")]
    ranks: list[list[CallSignature]] = [[], [], []]
    for _ in range(draw(st.integers(0, 30))):
        if draw(st.booleans()):
            call = all_reduce(draw(st.sampled_from(groups)), line=draw(st.integers(1, 5)), file="/repo/a.py")
            for rank in call.group.ranks:
                ranks[rank].append(call)
        else:
            source, target = draw(st.permutations([0, 1, 2]))[:2]
            tag = draw(st.integers(0, 2))
            ranks[source].append(send(target, groups[0], tag=tag))
            ranks[target].append(recv(source, groups[0], tag=tag))
    return ranks


@pytest.mark.slow("hypothesis draws many examples")
@given(programs())
def test_calls_that_fit_together_are_nothing_to_tell(ranks):
    assert judge(*ranks) == ()


SPECS = st.lists(
    st.builds(Spec, st.sampled_from(["float32", "uint8"]), st.tuples(st.integers(0, 3))), max_size=3
)
ANYTHING = st.builds(
    CallSignature,
    op=st.sampled_from(["allreduce", "allgather", "gather", "scatter", "alltoall", "broadcast", "barrier"]),
    group=st.sampled_from(
        [group_of(0, 1, 2), group_of(2, 0, name="a"), group_of(1, name="b"), group_of(0, 9, name="c")]
    ),
    root=st.sampled_from([None, 0, 2]),
    reduce_op=st.sampled_from(["", "SUM", "MAX"]),
    inputs=SPECS.map(tuple),
    outputs=SPECS.map(tuple),
    thread=st.integers(0, 1),
    dropped=st.booleans(),
)
MESSAGES = st.builds(
    CallSignature,
    op=st.sampled_from(["send", "recv"]),
    group=st.just(group_of(0, 1, 2)),
    peer=st.sampled_from([ANY_SOURCE, 0, 1, 2]),
    tag=st.integers(0, 1),
    inputs=SPECS.map(tuple),
    outputs=SPECS.map(tuple),
    batched=st.booleans(),
)


@pytest.mark.slow("hypothesis draws many examples")
@given(st.lists(st.lists(ANYTHING | MESSAGES, max_size=12), min_size=3, max_size=3))
def test_whatever_ranks_call_it_is_judged(ranks):
    for finding in judge(*ranks):
        assert finding.message
        assert any(call.decides for order in finding.orders for call in order.calls)


@pytest.mark.slow("hypothesis draws many examples")
@given(programs(), st.randoms())
def test_a_missing_call_is_found(ranks, random):
    some = [rank for rank, calls in enumerate(ranks) if calls]
    if some:
        rank = random.choice(some)
        del ranks[rank][random.randrange(len(ranks[rank]))]

        assert {finding.kind for finding in judge(*ranks)} & {
            OrderFindingKind.EXTRA,
            OrderFindingKind.MISMATCH,
        }


@given(st.lists(st.integers(0, 3), max_size=20), st.randoms())
def test_groups_that_share_one_rank_at_most_may_be_used_in_any_order(numbers, random):
    """Each of them is of rank 0 and one other: what rank 0 does first is no other rank's business."""
    groups = [group_of(0, other, name=f"g{other}") for other in (1, 2, 3, 4)]
    mine = [all_reduce(groups[number]) for number in numbers]
    random.shuffle(mine)
    others = [[call for call in mine if call.group is group] for group in groups]

    assert judge(mine, *others) == ()


@given(st.integers(2, 6), st.data())
def test_any_exchange_of_two_neighbours_of_two_groups_is_found(length, data):
    first, second = group_of(0, 1, name="first"), group_of(0, 1, name="second")
    calls = [all_reduce((first, second)[number % 2]) for number in range(length)]
    swapped = list(calls)
    place = data.draw(st.integers(0, length - 2))
    swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]

    assert [finding.kind for finding in judge(calls, swapped)] == [OrderFindingKind.GROUP_ORDER]


class TestGroups:
    def judge(self, *makings: Sequence[GroupMaking]) -> tuple[PluginFinding, ...]:
        streams = {rank: Stream(makings=tuple(each)) for rank, each in enumerate(makings)}
        return judge_order(streams)

    def made(self, number: int, *ranks: int, **fields: Any) -> GroupMaking:
        return GroupMaking(number=str(number), ranks=ranks, file="a.py", **fields)

    def test_other_members_under_one_number(self):
        orders = [self.made(1, 0, line=3), self.made(2, 0, 1, line=4)], [self.made(1, 0, 1, line=6)]
        finding = only(self.judge(*orders))

        assert finding.kind == OrderFindingKind.MISMATCH
        assert finding.message == (
            "ranks disagree about group #1: rank 0 made it of rank 0 at a.py:3, rank 1 made it of ranks 0, 1 at a.py:6"
        )

    def test_a_group_that_one_rank_has_not_made(self):
        finding = only(self.judge([self.made(1, 0, 1), self.made(2, 0)], [self.made(1, 0, 1)]))

        assert finding.kind == OrderFindingKind.EXTRA
        assert "rank 1 never made it" in finding.message

    def test_the_same_number_after_the_default_group_was_destroyed(self):
        both = [self.made(1, 0, 1), self.made(1, 0)]
        assert self.judge(both, [self.made(1, 0, 1, line=9), self.made(1, 0)]) == ()

    def test_dimensions_of_a_mesh(self):
        (one, other) = (self.made(1, 0, dimension=name) for name in ("mesh_dp", "mesh_tp"))
        assert "for mesh_dp" in only(self.judge([one], [other])).message

    def test_each_rank_alone(self):
        assert self.judge([self.made(1, 0)], [self.made(1, 1)]) == ()


@pytest.mark.parametrize(("one", "other"), [((), (1,)), ((4,), (1, 4)), ((2, 1, 3), (2, 3))])
def test_dimensions_of_length_one_change_no_order(one, other):
    first, second = (all_reduce(inputs=(Spec("float32", shape),)) for shape in (one, other))
    assert judge([first], [second]) == ()


def test_a_nameless_group_is_named_by_its_number_and_ranks():
    group = StreamGroup(name="3", description="", ranks=(0, 1))
    assert "collective #1 of group #3 (ranks 0, 1)" in only(judge([all_reduce(group)], [])).message


def test_a_nameless_group_of_its_members_alone_is_named_by_ranks():
    group = StreamGroup(name="5af0", description="", ranks=(0, 1))
    assert "collective #1 of group of ranks 0, 1:" in only(judge([all_reduce(group)], [])).message


class TestSplits:
    def call(self, taken: tuple[int, ...], given: tuple[int, ...], rows: int = 4) -> CallSignature:
        four = (Spec("float32", (rows, 3)),)
        return CallSignature(op="alltoall_base", group=PAIR, inputs=four, outputs=four, splits=(taken, given))

    def test_fewer_rows_are_given_than_taken(self):
        finding = only(judge([self.call((2, 2), (2, 1))], [self.call((2, 2), (2, 2))]))

        assert finding.kind == OrderFindingKind.MISMATCH
        assert "rank 0 called all_to_all_single of float32[4, 3] taking 2,2 giving 2,1" in finding.message

    def test_uneven_parts_that_fit(self):
        assert judge([self.call((1, 3), (1, 1))], [self.call((1, 2), (3, 2))]) == ()

    def test_equal_parts_with_and_without_sizes(self):
        assert judge([self.call((), ())], [self.call((2, 2), ())]) == ()
        assert judge([self.call((), ())], [self.call((), (), rows=6)]) != ()


def call(*_args: object, **_keywords: object) -> bool:
    """Stands for an asynchronous call: whether its caller throws the result away."""
    caller = sys._getframe(1)
    return seen.append(is_thrown_away(caller.f_code, caller.f_lasti))


seen: list[bool] = []


def popped():
    call(1, async_op=True)


def popped_of_many():
    call(*[1], async_op=True)


def popped_in_a_loop():
    for _ in range(2):
        call()


def stored_and_never_read():
    work = call()  # noqa: F841


def waited():
    work = call()
    work and work.wait()


def waited_in_one_branch():
    work = call()
    if not popped:
        work.wait()


def returned():
    return call()


def kept_in_a_list():
    works = [call()]
    works.append(call())


def handed_on():
    print(call(), end="")


def shared_with_an_inner_function():
    work = call()
    return lambda: work


@pytest.mark.parametrize("function", [popped, popped_of_many, popped_in_a_loop, stored_and_never_read])
def test_it_is_thrown_away(function):
    seen.clear()
    function()

    assert set(seen) == {True}


@pytest.mark.parametrize(
    "function",
    [waited, waited_in_one_branch, returned, kept_in_a_list, handed_on, shared_with_an_inner_function],
)
def test_it_may_be_waited_for(function):
    seen.clear()
    function()

    assert set(seen) == {False}
