"""What is a proof that no rank can continue, and what is none."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from board_actors import Stage, group_of
from hypothesis import given
from hypothesis import strategies as st

from disttest.limits import NO_LIMIT_S
from disttest.observe import ANY_SOURCE, Site, WaitKind
from disttest.plugins.deadlock.layout import RING, Direction
from disttest.plugins.deadlock.proof import find_deadlock
from disttest.plugins.deadlock.proven import DeadlockKind
from disttest.plugins.deadlock.snapshot import GroupKey

ALL = group_of(0, 1)


def stage_of(*programs):
    """A world in which each rank has done something."""
    stage = Stage(len(programs))
    for actor, program in zip(stage.ranks, programs, strict=True):
        program(actor)
    return stage


def idle(_actor):
    """Python of its own."""


def reduce(actor):
    return actor.do("allreduce", ALL)


def waits_for_key(actor, **more):
    return actor.wait(kind=WaitKind.STORE, keys=("ready",), **more)


def edges(deadlock):
    return [(edge.rank, edge.what, edge.ranks, edge.reason) for edge in deadlock.edges]


# --- proofs


def test_a_partner_has_finished():
    deadlock = stage_of(reduce, idle).judge(over=[1])

    assert deadlock.kind is DeadlockKind.FINISHED
    assert edges(deadlock) == [(0, "all_reduce #1", (1,), "which has finished the test")]
    assert deadlock.finished == (1,)


def test_a_partner_has_skipped_the_test():
    stage = stage_of(reduce, idle)
    situation = msgspec.structs.replace(stage.situation(over=[1]), skipped={1: "no GPU here"})

    assert edges(find_deadlock(situation))[0][3] == "which has skipped the test (no GPU here)"


def test_a_partner_is_dead():
    deadlock = stage_of(reduce, idle).judge(dead=[1])

    assert edges(deadlock)[0][3] == "whose process has ended"


def test_some_of_those_it_waits_for_have_finished():
    everybody = group_of(0, 1, 2)
    stage = stage_of(lambda a: a.do("barrier", everybody), waits_for_key, idle)

    deadlock = stage.judge(over=[2])

    assert edges(deadlock)[0] == (
        0,
        "barrier #1",
        (1, 2),
        "of which rank 2 has finished the test",
    )


def test_another_operation_at_the_same_number():
    deadlock = stage_of(reduce, lambda a: a.do("broadcast", ALL, root=0)).judge()

    assert deadlock.kind is DeadlockKind.MISMATCH
    assert edges(deadlock) == [
        (0, "all_reduce #1", (1,), "which has called broadcast in its place"),
        (1, "broadcast #1", (0,), "which has called all_reduce in its place"),
    ]


def test_another_operation_long_ago_is_no_reason():
    def reduces_often(actor):
        for _ in range(20):
            actor.call("allreduce", ALL)

    def broadcasts_first(actor):
        actor.do("broadcast", ALL, root=0)

    assert stage_of(reduces_often, broadcasts_first).judge() is None


def test_other_roots():
    deadlock = stage_of(*(lambda a, root=root: a.do("broadcast", ALL, root=root) for root in (1, 0))).judge()

    assert deadlock.kind is DeadlockKind.ROOTS
    assert edges(deadlock)[0][3] == "which has called it with root 0 instead of 1"


def test_groups_in_another_order():
    first, second = (group_of(0, 1, name=name, description=name) for name in ("first", "second"))

    deadlock = stage_of(lambda a: a.do("allreduce", first), lambda a: a.do("allreduce", second)).judge()

    assert deadlock.kind is DeadlockKind.GROUPS
    assert [edge.group for edge in deadlock.edges] == ["first", "second"]


def test_one_name_of_two_groups_is_no_meeting():
    pairs = [group_of(0, 1, name="1"), group_of(1, 2, name="1")]
    stage = stage_of(lambda a: a.do("barrier", pairs[0]), lambda a: a.do("barrier", pairs[1]), idle)

    assert stage.judge(over=[2]).edges[0].ranks == (1,)


@pytest.mark.parametrize("op", ["send", "recv"])
def test_both_send_or_both_receive(op):
    deadlock = stage_of(lambda a: a.do(op, ALL, peer=1), lambda a: a.do(op, ALL, peer=0)).judge()

    assert deadlock.kind is DeadlockKind.POINT_TO_POINT
    assert [edge.op for edge in deadlock.edges] == [op, op]


def test_other_tags():
    sends, receives = lambda a: a.do("send", ALL, peer=1, tag=1), lambda a: a.do("recv", ALL, peer=0, tag=2)

    assert stage_of(sends, receives).judge().edges[1].what == "recv #1 from rank 0 with tag 2"


def test_a_receive_from_anybody_when_nobody_sends():
    def receives(actor):
        actor.do("recv_any_source", ALL, peer=ANY_SOURCE)

    assert stage_of(receives, idle).judge(over=[1]).edges[0].what.startswith("recv #1 from any rank")


def test_what_another_receive_has_taken_is_not_there_for_one_from_anybody():
    def receives_twice(actor):
        actor.done(actor.do("recv", ALL, peer=1))
        actor.do("recv_any_source", ALL, peer=ANY_SOURCE)

    assert stage_of(receives_twice, lambda a: a.call("send", ALL, peer=0)).judge(over=[1])


def test_a_receive_and_a_collective():
    deadlock = stage_of(reduce, lambda a: a.do("recv", ALL, peer=0)).judge()

    assert deadlock.kind is DeadlockKind.CYCLE


def test_a_key_that_nobody_is_left_to_set():
    deadlock = stage_of(waits_for_key, reduce).judge()

    assert deadlock.kind is DeadlockKind.STORE
    assert edges(deadlock)[0] == (0, "key 'ready' of a store", (1,), "")


def test_a_group_that_one_member_makes():
    deadlock = stage_of(lambda a: a.wait(kind=WaitKind.GROUP, ranks=(0, 1)), idle).judge(over=[1])

    assert deadlock.kind is DeadlockKind.ALONE
    assert edges(deadlock)[0][1:3] == ("new_group(0-1)", (1,))


def test_two_groups_made_at_once():
    makes = [lambda a, ranks=ranks: a.wait(kind=WaitKind.GROUP, ranks=ranks) for ranks in [(0, 1, 2), (0, 1)]]

    assert stage_of(*makes, lambda a: a.do("barrier", group_of(0, 1, 2))).judge()


def test_a_call_of_cpp_that_others_do_not_make():
    deadlock = stage_of(lambda a: a.call("allreduce", ALL, by_cpp=True), idle).judge(over=[1])

    assert deadlock.edges[0].op == "all_reduce"


def test_all_threads_of_a_rank_wait():
    def waits_twice(actor):
        actor.do("allreduce", ALL, thread=1)
        waits_for_key(actor, thread=2)

    assert [edge.rank for edge in stage_of(waits_twice, idle).judge(over=[1]).edges] == [0, 0]


# --- none


def test_who_runs_may_do_anything():
    assert stage_of(reduce, idle).judge() is None


def test_all_are_in_the_same_collective():
    assert stage_of(reduce, reduce).judge() is None


def test_nobody_is_at_the_test():
    assert stage_of(idle, idle).judge(over=[0, 1]) is None


def test_one_may_go_on_though_others_cannot():
    def makes_two(actor):
        actor.call("allreduce", ALL)
        waits_for_key(actor)

    assert stage_of(makes_two, reduce).judge() is None


@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_who_is_not_the_root_needs_the_root_alone(op):
    everybody = group_of(0, 1, 2)
    takes_part = lambda a: a.do(op, everybody, root=0)  # noqa: E731
    calls = lambda a: a.call(op, everybody, root=0)  # noqa: E731

    assert stage_of(calls, takes_part, idle).judge(over=[0, 2]) is None
    assert stage_of(takes_part, calls, idle).judge(over=[1, 2])


def test_a_wait_that_gives_up_before_the_test():
    assert stage_of(lambda a: waits_for_key(a, timeout_s=5.0), reduce).judge() is None
    assert stage_of(lambda a: waits_for_key(a, timeout_s=1800.0), reduce).judge()
    stage = stage_of(lambda a: a.wait(a.call("allreduce", ALL), timeout_s=5.0), idle)
    situation = stage.situation(over=[1])
    gives_up_s = stage.snapshot(0).waits[0].until_s

    assert find_deadlock(msgspec.structs.replace(situation, deadline_s=gives_up_s + 1)) is None
    assert find_deadlock(msgspec.structs.replace(situation, deadline_s=gives_up_s - 1))


def test_a_handle_gives_up_counted_from_its_call():
    stage = stage_of(lambda a: a.wait(a.call("allreduce", ALL, is_async=True), timeout_s=None), idle)

    assert stage.snapshot(0).waits[0].until_s <= stage.snapshot(0).waits[0].since_s + 1800.0


@pytest.mark.parametrize("kind", [WaitKind.WORK, WaitKind.FUTURE, WaitKind.BACKWARD])
def test_a_wait_for_nobody_knows_what(kind):
    assert stage_of(lambda a: a.wait(kind=kind), idle).judge(over=[1]) is None


def test_a_backward_pass_without_a_call_computes():
    assert stage_of(lambda a: a.wait(kind=WaitKind.BACKWARD, timeout_s=None), idle).judge(over=[1]) is None


def test_the_last_call_of_cpp_has_met_its_partners():
    calls = lambda a: a.call("allreduce", ALL, by_cpp=True)  # noqa: E731

    assert stage_of(calls, calls).judge() is None


def test_sends_that_a_receive_from_anybody_may_take():
    sends = lambda a: a.do("send", ALL, peer=1)  # noqa: E731
    takes = lambda a: (a.call("recv_any_source", ALL, peer=ANY_SOURCE), waits_for_key(a))  # noqa: E731

    assert stage_of(sends, takes).judge() is None


def test_a_rank_that_is_not_observed():
    situation = stage_of(reduce, idle).situation(over=[1])
    blind = msgspec.structs.replace(situation.ranks[0], is_observed=False)

    assert find_deadlock(situation)
    assert find_deadlock(msgspec.structs.replace(situation, ranks={0: blind})) is None


@pytest.mark.parametrize("where", ["ranks", "over"])
def test_a_rank_of_which_something_is_missing(where):
    situation = stage_of(reduce, idle).situation(over=[1])
    gaps = {
        rank: msgspec.structs.replace(each, has_gap=True) for rank, each in getattr(situation, where).items()
    }

    assert find_deadlock(msgspec.structs.replace(situation, **{where: gaps})) is None


def test_ranks_of_the_default_group_that_are_others_in_the_world():
    situation = stage_of(reduce, idle).situation(over=[1])
    swapped = msgspec.structs.replace(situation.ranks[0], rank=1)

    assert find_deadlock(msgspec.structs.replace(situation, ranks={0: swapped})) is None


def test_members_outside_of_the_world():
    wide = group_of(0, 1, 7)

    assert stage_of(lambda a: a.do("barrier", wide), idle).judge(over=[1]) is None


# --- any program


def _key(call):
    return GroupKey(name=call.group.name, ranks=call.group.ranks)


class Simulated:
    """Ranks with one thread each that do one thing after another, as gloo would let them."""

    def __init__(self, programs):
        self.programs = [list(program) for program in programs]
        self.stage = Stage(len(programs))
        self.waits = [None] * len(programs)
        self.keys = set()

    def over(self):
        return [rank for rank, todo in enumerate(self.programs) if not todo and self.waits[rank] is None]

    def movable(self):
        """The ranks that can go on."""
        return [rank for rank in range(len(self.programs)) if self._can_move(rank)]

    def _can_move(self, rank):
        wait = self.waits[rank]
        return bool(self.programs[rank]) if wait is None else self._is_met(rank, wait)

    def _is_met(self, rank, wait):
        if wait.call is None:
            return wait.keys[0] in self.keys
        if wait.call.peer is not None:
            return self._meets(rank, wait.call)
        others = [m for m in wait.call.group.ranks if m != rank]
        return all(self._issued(other, wait.call) == (wait.call.op, wait.call.root) for other in others)

    def _issued(self, rank, call):
        state = self.stage.snapshot(rank).groups.get(_key(call))
        found = state.calls.get(call.seq) if state else None
        return found and (found.op, found.root)

    def _meets(self, rank, call):
        direction = Direction.RECEIVE if call.op == "send" else Direction.SEND
        key = (_key(call), direction, rank, call.tag)
        found = self.stage.snapshot(call.peer).channels.get(key)
        return found is not None and found.issued >= call.seq

    def notices(self, movable):
        """Whether all that can go on wait for keys that are set."""
        return all(self.waits[rank] and self.waits[rank].call is None for rank in movable)

    def move(self, rank):
        actor, wait = self.stage.ranks[rank], self.waits[rank]
        if wait is not None:
            actor.done(wait)
            self.waits[rank] = None
            return
        what, *arguments = self.programs[rank].pop(0)
        self.waits[rank] = getattr(self, f"_{what}")(actor, *arguments)

    def _collective(self, actor, op, group, root):
        return actor.do(op, group, root=root)

    def _later(self, actor, op, group, root):
        actor.call(op, group, root=root, is_async=True)

    def _send(self, actor, group, peer, tag):
        return actor.do("send", group, peer=peer, tag=tag)

    def _recv(self, actor, group, peer, tag):
        return actor.do("recv", group, peer=peer, tag=tag)

    def _irecv(self, actor, group, peer, tag):
        actor.call("recv", group, peer=peer, tag=tag)

    def _set(self, _actor, key):
        self.keys.add(key)

    def _get(self, actor, key):
        return actor.wait(kind=WaitKind.STORE, keys=(key,))


def actions(rank, groups):
    mine = st.sampled_from([group for group in groups if rank in group.ranks])
    peers = [other for other in range(3) if other != rank]
    collectives = st.sampled_from([("allreduce", None), ("broadcast", 0), ("broadcast", 1)])
    p2p = st.tuples(
        st.sampled_from(["send", "recv", "irecv"]),
        st.just(groups[0]),
        st.sampled_from(peers),
        st.integers(0, 1),
    )
    return st.one_of(
        st.tuples(st.sampled_from(["collective", "later"]), collectives, mine).map(
            lambda found: (found[0], found[1][0], found[2], found[1][1])
        ),
        p2p,
        st.tuples(st.sampled_from(["set", "get"]), st.sampled_from("ab")),
    )


GROUPS = [group_of(0, 1, 2), group_of(0, 1, name="1"), group_of(1, 2, name="2"), group_of(0, 1, 2, name="3")]


@pytest.mark.slow("hypothesis draws many examples")
@given(st.data(), st.tuples(*(st.lists(actions(rank, GROUPS), max_size=6) for rank in range(3))))
def test_a_proof_is_given_exactly_when_nobody_can_go_on(data, programs):
    simulated = Simulated(programs)
    while movable := simulated.movable():
        # Somebody can go on: whatever the order in which they are let, there is no proof. (Who waits for a key that was
        # set does so for no longer than it takes to notice: nothing is proven before all has been still for a while.)
        assert simulated.stage.judge(simulated.over()) is None or simulated.notices(movable)
        simulated.move(data.draw(st.sampled_from(movable)))

    stuck = len(simulated.over()) < 3
    assert bool(simulated.stage.judge(simulated.over())) == stuck


# --- GPUs, which wait for calls in their queues


def queues(op, group=ALL, **more):
    """A rank that waits for its GPU, after a call."""
    return lambda actor: actor.queue(actor.call(op, group, **more))


def test_a_gpu_waits_for_a_call_that_another_rank_does_not_make():
    deadlock = stage_of(queues("allreduce"), idle).judge(over=[1])

    assert deadlock.kind is DeadlockKind.FINISHED
    assert edges(deadlock) == [
        (0, "all_reduce #1 (in the queue of its GPU)", (1,), "which has finished the test")
    ]


def test_of_several_calls_in_a_queue_the_first_that_is_missing_is_named():
    def queues_three(actor):
        for _ in range(2):
            actor.call("allreduce", ALL)
        actor.queue(actor.call("allgather", ALL))

    deadlock = stage_of(queues_three, queues("allreduce")).judge(over=[1])

    assert [edge.what for edge in deadlock.edges] == ["all_reduce #2 (in the queue of its GPU)"]


def test_gpus_whose_calls_everybody_has_made_may_only_be_busy():
    assert stage_of(queues("allreduce"), queues("allreduce")).judge() is None
    assert stage_of(queues("allreduce"), lambda a: a.queue()).judge() is None


def test_a_gpu_waits_for_its_last_calls_of_two_groups_and_one_of_them_is_missing():
    other = group_of(0, 1, name="1", description="other")

    def both(actor):
        actor.queue(actor.call("allreduce", ALL), actor.call("allreduce", other))

    deadlock = stage_of(both, queues("allreduce", other)).judge(over=[1])

    assert [edge.what for edge in deadlock.edges] == ["all_reduce #1 (in the queue of its GPU)"]


def test_another_thread_of_a_rank_whose_gpu_may_come_to_an_end():
    def two_threads(actor):
        actor.queue(actor.call("allreduce", ALL))
        waits_for_key(actor, thread=2)

    assert stage_of(two_threads, queues("allreduce")).judge() is None
    assert stage_of(two_threads, waits_for_key).judge() is not None


@pytest.mark.parametrize(
    ("op", "root", "is_open"),
    [("broadcast", 1, True), ("broadcast", 0, False), ("reduce", 0, True), ("reduce", 1, False)],
)
def test_who_sends_to_a_root_or_from_one_may_be_let_go(op, root, is_open):
    deadlock = stage_of(queues(op, root=root), idle).judge(over=[1])

    assert (deadlock is not None) == is_open


@pytest.mark.parametrize(("op", "is_open"), [("recv", True), ("send", False)])
def test_there_may_be_room_for_what_a_gpu_sends(op, is_open):
    deadlock = stage_of(queues(op, peer=1), idle).judge(over=[1])

    assert (deadlock is not None) == is_open


def test_a_call_in_a_queue_that_gives_up_before_the_test():
    def queues_two(actor):
        calls = [actor.call("allreduce", group_of(0, 1, name=name)) for name in "ab"]
        actor.queue(msgspec.structs.replace(calls[0], timeout_s=5.0), calls[1])

    stage = stage_of(queues_two, idle)
    situation = stage.situation(over=[1])
    gives_up_s = {wait.until_s for wait in stage.snapshot(0).waits}

    assert len(gives_up_s) == 1
    assert find_deadlock(msgspec.structs.replace(situation, deadline_s=gives_up_s.pop() + 1)) is None


FIRST, SECOND = (group_of(0, 1, name=name, description=name) for name in ("first", "second"))


def queues_in_turn(*calls):
    """A rank that waits for its GPU, whose stream comes to each call when the one before it is over.

    Args:
        calls: operation, group and root of each.
    """

    def program(actor):
        made = []
        for op, group, root in calls:
            behind = (made[-1].group.name, made[-1].seq) if made else None
            made.append(actor.call(op, group, root=root, behind=behind))
        actor.queue(*made)

    return program


def in_turn(*groups):
    return queues_in_turn(*(("allreduce", group, None) for group in groups))


def test_gpus_come_to_the_calls_of_two_groups_in_two_orders():
    deadlock = stage_of(in_turn(FIRST, SECOND), in_turn(SECOND, FIRST)).judge()

    assert deadlock.kind is DeadlockKind.GROUPS
    queue = "(in the queue of its GPU)"
    assert edges(deadlock) == [
        (
            0,
            f"all_reduce #1 of group first {queue}",
            (1,),
            "which has called all_reduce #1 of group second before it",
        ),
        (
            1,
            f"all_reduce #1 of group second {queue}",
            (0,),
            "which has called all_reduce #1 of group first before it",
        ),
    ]


def test_gpus_may_be_busy_where_all_come_to_the_calls_of_two_groups_in_one_order():
    assert stage_of(in_turn(FIRST, SECOND, FIRST), in_turn(FIRST, SECOND, FIRST)).judge() is None


def test_what_is_not_behind_another_call_may_run_beside_it():
    def side_by_side(*groups):
        return lambda actor: actor.queue(*(actor.call("allreduce", group, is_async=True) for group in groups))

    assert stage_of(side_by_side(FIRST, SECOND), side_by_side(SECOND, FIRST)).judge() is None
    assert stage_of(in_turn(FIRST, SECOND), side_by_side(SECOND, FIRST)).judge() is None


def test_a_root_that_sends_comes_to_its_next_call_without_the_others():
    def broadcasts(*groups):
        return queues_in_turn(*(("broadcast", group, 0) for group in groups))

    assert stage_of(broadcasts(FIRST, SECOND), broadcasts(SECOND, FIRST)).judge() is None


def test_three_gpus_of_which_each_comes_to_one_of_its_two_groups_first():
    ring = [group_of(a, b, name=f"{a}{b}", description=f"{a}{b}") for a, b in ((0, 1), (1, 2), (0, 2))]
    stage = stage_of(in_turn(ring[0], ring[2]), in_turn(ring[1], ring[0]), in_turn(ring[2], ring[1]))

    assert {edge.rank for edge in stage.judge().edges} == {0, 1, 2}


def test_a_gpu_comes_to_no_call_behind_one_that_a_third_rank_does_not_make():
    three = group_of(0, 1, 2, name="three", description="three")
    stage = stage_of(in_turn(FIRST), in_turn(three, FIRST), waits_for_key)

    deadlock = stage.judge()

    queue = "(in the queue of its GPU)"
    assert edges(deadlock)[0] == (
        0,
        f"all_reduce #1 of group first {queue}",
        (1,),
        "which has called all_reduce #1 of group three before it",
    )
    assert edges(deadlock)[1] == (1, f"all_reduce #1 of group three {queue}", (0, 2), "")
    assert [edge.rank for edge in deadlock.edges] == [0, 1, 2]
    assert stage_of(in_turn(FIRST), in_turn(three, FIRST), idle).judge() is None


def test_who_waits_for_one_call_alone_is_told_which_one_its_gpu_is_at():
    def waits_for_last(*groups):
        def program(actor):
            made = []
            for group in groups:
                made.append(actor.call("allreduce", group, behind=(made[-1].group.name, 1) if made else None))
            actor.queue(made[-1])

        return program

    deadlock = stage_of(waits_for_last(FIRST, SECOND), waits_for_last(SECOND, FIRST)).judge()

    assert [(edge.rank, edge.group, edge.ranks) for edge in deadlock.edges] == [
        (0, "first", (1,)),
        (1, "second", (0,)),
    ]


def test_a_call_that_is_no_longer_on_the_board_counts_as_over():
    def long_ago(first, second):
        def program(actor):
            before = actor.call("allreduce", first)
            actor.call("allreduce", second, behind=(first.name, before.seq))
            calls = [actor.call("allreduce", group) for _ in range(RING) for group in (FIRST, SECOND)]
            actor.queue(*calls[-2:])

        return program

    assert stage_of(long_ago(FIRST, SECOND), long_ago(SECOND, FIRST)).judge() is None


def test_a_key_that_other_processes_can_set_is_no_proof():
    assert stage_of(waits_for_key, waits_for_key).judge() is not None
    assert stage_of(waits_for_key, lambda a: waits_for_key(a, is_public=True)).judge() is None


def test_a_group_that_torch_does_not_list_may_have_other_members():
    foreign = msgspec.structs.replace(ALL, name="7", is_foreign=True)

    assert stage_of(reduce, lambda a: a.do("allreduce", foreign)).judge() is None


# --- tensors of other sizes


def tensor(*shape, dtype="torch.float32"):
    return SimpleNamespace(dtype=dtype, shape=shape)


def brings(*tensors, op="allreduce", **more):
    return lambda actor: actor.do(op, ALL, inputs=tensors, **more)


def test_other_sizes():
    deadlock = stage_of(brings(tensor(2)), brings(tensor(3))).judge()

    assert deadlock.kind is DeadlockKind.MISMATCH
    assert edges(deadlock) == [
        (
            0,
            "all_reduce #1",
            (1,),
            "which has called it with float32[3] instead of float32[2]",
        ),
        (
            1,
            "all_reduce #1",
            (0,),
            "which has called it with float32[2] instead of float32[3]",
        ),
    ]


def test_a_rank_that_has_finished_brought_another_size():
    site = Site(test_other_sizes.__code__, 7)
    deadlock = stage_of(brings(tensor(2)), lambda a: a.call("allreduce", ALL, inputs=(tensor(3),), site=site))

    (edge,) = deadlock.judge(over=[1]).edges
    assert edge.reason == "which has called it with float32[3] instead of float32[2] at test_proof.py:7"


def test_an_earlier_call_was_of_another_size():
    def program(first):
        def calls(actor):
            actor.done(actor.do("broadcast", ALL, inputs=(tensor(first),), root=0))
            actor.do("allreduce", ALL, inputs=(tensor(4),))

        return calls

    deadlock = stage_of(program(4), program(5)).judge()
    assert edges(deadlock)[0][3] == "which has called broadcast #1 with float32[5] instead of float32[4]"


@pytest.mark.parametrize(
    ("first", "second", "op"),
    [
        ([tensor(4)], [tensor(2, 2)], "allreduce"),
        ([tensor()], [tensor(1)], "allreduce"),
        ([tensor(4)], [tensor(4, dtype="torch.int32")], "allreduce"),
        ([tensor(4)], [tensor(6)], "alltoall_base"),
        ([tensor(4), tensor(4)], [], "scatter"),
        ([tensor(4)], [], "allreduce"),
    ],
    ids=["flat", "scalar", "as other type", "uneven", "scatter", "not told"],
)
def test_sizes_that_fit_or_may_differ(first, second, op):
    assert stage_of(brings(*first, op=op), brings(*second, op=op)).judge() is None


def test_types_of_other_widths():
    deadlock = stage_of(brings(tensor(4)), brings(tensor(4, dtype="torch.float64"))).judge()
    assert edges(deadlock)[0][3] == "which has called it with float64[4] instead of float32[4]"


def test_a_gpu_may_bring_uneven_lists():
    def queues(size, op):
        return lambda actor: actor.queue(actor.call(op, ALL, inputs=(tensor(size),)))

    assert stage_of(queues(2, "allgather"), queues(3, "allgather")).judge() is None
    assert stage_of(queues(2, "allreduce"), queues(3, "allreduce")).judge() is not None


# --- limits


@pytest.mark.parametrize("limit_s", [3600.0, NO_LIMIT_S])
def test_the_limit_of_the_group_ends_in_the_same_failure(limit_s):
    assert stage_of(reduce, idle).judge(over=[1], limit_s=limit_s) is not None


def test_the_limit_of_a_store_ends_in_the_same_failure():
    stage = stage_of(lambda a: waits_for_key(a, timeout_s=300.0), waits_for_key)
    assert stage.judge(limit_s=NO_LIMIT_S) is not None
    assert stage_of(lambda a: waits_for_key(a, timeout_s=200.0)).judge(limit_s=NO_LIMIT_S) is None


def test_a_shorter_limit_may_be_meant():
    stage = stage_of(lambda a: a.wait(a.call("allreduce", ALL), timeout_s=1000.0), idle)
    assert stage.judge(over=[1], limit_s=NO_LIMIT_S) is None


# --- groups under other numbers


def makes(*ranks, number):
    def program(actor):
        return actor.wait(kind=WaitKind.GROUP, ranks=ranks, group_name=number)

    return program


def test_a_group_is_made_under_one_number():
    assert stage_of(makes(0, 1, number="1"), makes(0, 1, number="1")).judge() is None


def test_the_same_members_under_other_numbers():
    deadlock = stage_of(makes(0, 1, number="1"), makes(0, 1, number="2")).judge()

    assert deadlock.kind is DeadlockKind.ALONE
    assert edges(deadlock) == [
        (0, "new_group(0-1) as group #1", (1,), "which has called new_group(0-1) as group #2 in its place"),
        (1, "new_group(0-1) as group #2", (0,), "which has called new_group(0-1) as group #1 in its place"),
    ]


def test_a_rank_has_made_another_group_under_the_number():
    def alone_first(actor):
        actor.done(makes(1, number="1")(actor))
        makes(0, 1, number="2")(actor)

    deadlock = stage_of(makes(0, 1, number="1"), alone_first).judge()
    assert edges(deadlock)[0][3] == "which has called new_group(1) as group #1 in its place"


def test_a_group_that_its_members_make_alone_has_no_number():
    deadlock = stage_of(makes(0, 1, number="5a09"), idle).judge(over=[1])
    assert edges(deadlock) == [(0, "new_group(0-1)", (1,), "which has finished the test")]
