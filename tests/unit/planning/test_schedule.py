"""The batch scheduler: by example, and by Hypothesis against a fake clock."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import cycle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import batch, slots

from disttest.model import Batch, Slot
from disttest.planning.schedule import OVERTAKE_LIMIT, BatchScheduler, Start
from disttest.planning.simulate import VirtualClock, lower_bound_s, simulate


def scheduler_of(machine: tuple[Slot, ...], *batches: Batch) -> tuple[BatchScheduler, VirtualClock]:
    clock = VirtualClock()
    scheduler = BatchScheduler(machine, clock=clock)
    for each in batches:
        scheduler.submit(each)
    return scheduler, clock


def names(starts: list[Start]) -> list[str]:
    return [start.batch.batch_id for start in starts]


def test_batches_share_the_machine() -> None:
    scheduler, _ = scheduler_of(slots(4), batch("a", 2), batch("b", 2), batch("c", 2))

    first = list(scheduler.due())

    assert ["a", "b"] == names(first)
    assert 4 == len({slot for start in first for slot in start.slots})
    assert [] == list(scheduler.due())
    scheduler.ended("a")
    assert ["c"] == names(list(scheduler.due()))


def test_a_world_with_more_ranks_than_gpus_takes_all_of_them_if_they_may_be_shared() -> None:
    gpus = slots(2, "cuda")
    batches = [
        batch("wide", 4, device="cuda"),
        batch("wider", 5, device="cuda"),
        batch("fits", 2, device="cuda"),
    ]
    alone, shared = (
        BatchScheduler(gpus, clock=VirtualClock(), ranks_per_gpu=ranks_per_gpu) for ranks_per_gpu in (1, 2)
    )
    for each in batches:
        alone.submit(each)
        shared.submit(each)

    assert [("fits", gpus)] == [(start.batch.batch_id, start.slots) for start in alone.due()]
    assert ["wide", "wider"] == [each.batch_id for each in alone.stranded()]
    assert [("wide", gpus)] == [(start.batch.batch_id, start.slots) for start in shared.due()]
    assert ["wider"] == [each.batch_id for each in shared.stranded()]


def test_wide_batches_go_first_and_of_one_width_the_longest() -> None:
    machine = slots(2)
    short, long, wide = batch("short", 1, 1), batch("long", 1, 2), batch("wide", 2, 3)

    simulation = simulate((short, long, wide), machine)

    assert ["wide", "long", "short"] == [placed.start.batch.batch_id for placed in simulation.placements]


def test_a_batch_that_would_outlast_all_else_starts_at_once() -> None:
    simulation = simulate((*(batch(f"w{n}", 2, 1) for n in range(4)), batch("long", 1, 20)), slots(4))

    assert "long" == simulation.placements[0].start.batch.batch_id
    assert 20 == simulation.makespan_s


def test_a_batch_that_does_not_fit_is_overtaken_only_by_what_does_not_delay_it() -> None:
    scheduler, clock = scheduler_of(slots(4), batch("running", 3, 10))
    list(scheduler.due())
    scheduler.submit(batch("wide", 4, 30))
    scheduler.submit(batch("too-long", 1, 11))
    scheduler.submit(batch("in-time", 1, 9))

    assert ["in-time"] == names(list(scheduler.due()))
    clock.now_s = 9
    scheduler.ended("in-time")
    assert [] == list(scheduler.due())
    clock.now_s = 10
    scheduler.ended("running")
    assert ["wide"] == names(list(scheduler.due()))


def test_estimates_that_are_always_wrong_can_not_starve_a_wide_batch() -> None:
    """A stream of batches that promise to be short and are not: the wide one gets its turn all the same."""
    scheduler, clock = scheduler_of(slots(3), *(batch(f"first{n}", 1, 0.001) for n in range(3)))
    running = names(list(scheduler.due()))
    scheduler.submit(batch("wide", 2, 100))
    overtakes = 0
    for number in range(100):
        # Two are overdue at any time, so there seems to be room for the wide one and for another beside it.
        clock.now_s += 1
        scheduler.ended(running.pop(0))
        scheduler.submit(batch(f"liar{number}", 1, 0.001))
        started = names(list(scheduler.due()))
        if "wide" in started:
            break
        overtakes += len(started)
        running += started
    else:
        pytest.fail("the wide batch never started")
    assert 0 < overtakes <= OVERTAKE_LIMIT * 3 + 1  # one of them before the promised time had passed


def test_a_batch_that_has_to_wait_long_lets_all_pass_that_do_not_delay_it() -> None:
    long, wide = batch("long", 1, 100), batch("wide", 4, 10)
    short = [batch(f"s{n}", 1, 1) for n in range(290)]

    simulation = simulate((long, wide, *short), slots(4))

    # The short ones fill the three slots beside the long one; nothing idles for the sake of the wide one.
    assert 110 >= simulation.makespan_s


def test_exclusive_batches_run_alone() -> None:
    scheduler, _ = scheduler_of(slots(4), batch("a", 1), batch("alone", 1, exclusive=True), batch("b", 1))

    assert ["alone"] == names(list(scheduler.due()))
    scheduler.ended("alone")
    assert ["a", "b"] == names(list(scheduler.due()))
    scheduler.submit(batch("again", 1, exclusive=True))
    assert [] == list(scheduler.due())
    scheduler.ended("a")
    assert [] == list(scheduler.due())
    scheduler.ended("b")
    assert ["again"] == names(list(scheduler.due()))


def test_urgent_batches_go_first() -> None:
    scheduler, _ = scheduler_of(slots(2), batch("wide", 2, 50), batch("failed-last-time", 1, 1, urgent=True))

    assert "failed-last-time" == next(iter(scheduler.due())).batch.batch_id


def test_urgent_batches_go_before_longer_ones_of_their_width() -> None:
    simulation = simulate((batch("long", 1, 50), batch("failed-last-time", 1, 1, urgent=True)), slots(1))

    assert "failed-last-time" == simulation.placements[0].start.batch.batch_id


def test_cpu_and_gpu_slots_are_used_at_once() -> None:
    machine = (*slots(2), *slots(2, "cuda"))
    scheduler, _ = scheduler_of(machine, batch("on-cpu", 2), batch("on-gpu", 2, device="cuda"))

    started = {start.batch.batch_id: {slot.device for slot in start.slots} for start in scheduler.due()}

    assert {"on-cpu": {"cpu"}, "on-gpu": {"cuda"}} == started


def test_near_gpus_are_preferred_and_large_groups_kept_whole() -> None:
    machine = (
        *slots(4, "cuda", group_size=4),
        *(Slot(name=f"gpu:{n}", device="cuda", index=n, group="pair") for n in (4, 5)),
    )
    scheduler, _ = scheduler_of(machine, batch("two", 2, device="cuda"))

    (start,) = scheduler.due()

    assert [4, 5] == [slot.index for slot in start.slots]


def test_without_a_whole_group_the_fewest_groups_are_used() -> None:
    scheduler, _ = scheduler_of(slots(6, "cuda", group_size=3), batch("four", 4, device="cuda"))

    (start,) = scheduler.due()

    assert [0, 1, 2, 3] == [slot.index for slot in start.slots]


def test_a_world_larger_than_the_cpu_takes_all_of_it() -> None:
    scheduler, _ = scheduler_of(slots(2), batch("eight", 8))

    (start,) = scheduler.due()

    assert 2 == len(start.slots)


def test_a_world_larger_than_the_gpus_is_stranded() -> None:
    eight = batch("eight", 8, device="cuda")
    scheduler, _ = scheduler_of(slots(4, "cuda"), eight)

    assert [] == list(scheduler.due())
    assert not scheduler.idle
    assert (eight,) == scheduler.stranded()
    assert scheduler.idle


def test_slots_that_are_lent_take_one_more_batch_until_they_are_recalled() -> None:
    scheduler, _ = scheduler_of(slots(2), *(batch(name, 2) for name in "abcd"))
    spare = slots(6)[2:]
    assert 2 == scheduler.narrowest
    assert ["a"] == names(list(scheduler.due()))

    scheduler.add_spare(spare[:2])
    (start,) = scheduler.due()
    assert ("b", spare[:2]) == (start.batch.batch_id, start.slots)
    scheduler.recall(spare[:2])
    scheduler.ended("b")
    assert [] == list(scheduler.due())

    scheduler.add_spare(spare)
    assert ["c", "d"] == names(list(scheduler.due()))
    assert 0 == scheduler.narrowest


def test_of_slots_that_were_lent_some_are_recalled() -> None:
    scheduler, _ = scheduler_of(slots(1), *(batch(name) for name in "abcdef"))
    spare = slots(4)[1:]
    scheduler.add_spare(spare)
    assert 4 == len(list(scheduler.due()))

    scheduler.recall(spare[1:])
    scheduler.ended("b")
    scheduler.ended("c")

    assert [spare[:1]] == [start.slots for start in scheduler.due()]


def test_slots_that_are_lent_again_while_something_runs_on_them_are_used_after_it() -> None:
    scheduler, _ = scheduler_of(slots(1), *(batch(name) for name in "abc"))
    spare = slots(2)[1:]
    scheduler.add_spare(spare)
    assert ["a", "b"] == names(list(scheduler.due()))

    scheduler.recall(spare)
    scheduler.add_spare(spare)
    assert [] == list(scheduler.due())
    scheduler.ended("b")

    assert [spare] == [start.slots for start in scheduler.due()]


def test_a_world_is_as_wide_as_the_machine_whatever_is_lent() -> None:
    scheduler, _ = scheduler_of(slots(2), batch("running", 2))
    list(scheduler.due())
    scheduler.add_spare(slots(8)[2:])
    scheduler.submit(batch("wider than the machine", 4))
    scheduler.submit(batch("other", 2))

    assert [2, 2] == [len(start.slots) for start in scheduler.due()]


def test_nothing_is_lent_to_an_exclusive_batch_nor_runs_beside_it() -> None:
    scheduler, _ = scheduler_of(slots(2), batch("alone", 2, exclusive=True), batch("other", 2))
    scheduler.add_spare(slots(4)[2:])

    assert ["alone"] == names(list(scheduler.due()))


def test_a_slot_that_was_lent_and_is_lost_is_lost() -> None:
    scheduler, _ = scheduler_of(slots(1), batch("own", 1), batch("lent", 1), batch("waits", 1))
    spare = slots(2)[1:]
    scheduler.add_spare(spare)
    assert ["own", "lent"] == names(list(scheduler.due()))

    scheduler.ended("lent", quarantined=spare)
    scheduler.ended("own")

    (start,) = scheduler.due()
    assert slots(1) == start.slots
    assert () == scheduler.stranded()


def test_quarantined_slots_are_not_used_and_what_needs_them_is_stranded() -> None:
    machine = slots(2, "cuda")
    scheduler, _ = scheduler_of(machine, batch("a", 1, device="cuda"))
    (start,) = scheduler.due()
    scheduler.submit(batch("two", 2, device="cuda"))
    scheduler.submit(batch("one", 1, device="cuda"))

    scheduler.ended("a", quarantined=start.slots)

    assert ["two"] == [stranded.batch_id for stranded in scheduler.stranded()]
    (last,) = scheduler.due()
    assert not set(start.slots) & set(last.slots)


def test_quarantine_of_all_cpu_slots_strands_everything() -> None:
    scheduler, _ = scheduler_of(slots(1), batch("a"))
    (start,) = scheduler.due()
    scheduler.submit(batch("b"))
    scheduler.submit(batch("c", exclusive=True))

    scheduler.ended("a", quarantined=start.slots)

    assert {"b", "c"} == {stranded.batch_id for stranded in scheduler.stranded()}
    assert scheduler.idle


def test_slots_on_hold_are_not_handed_out_and_still_count() -> None:
    machine = slots(2, "cuda")
    scheduler, _ = scheduler_of(machine, batch("a", 1, device="cuda"), batch("two", 2, device="cuda"))
    scheduler.hold(machine[:1])

    (start,) = scheduler.due()
    scheduler.hold(start.slots)
    scheduler.ended("a")

    assert ([], ()) == (list(scheduler.due()), scheduler.stranded())
    scheduler.release(machine)
    assert ["two"] == names(list(scheduler.due()))


def test_the_release_of_a_taken_slot_does_not_hand_it_out_twice() -> None:
    machine = slots(1, "cuda")
    scheduler, _ = scheduler_of(machine, batch("a", 1, device="cuda"), batch("b", 1, device="cuda"))
    list(scheduler.due())

    scheduler.hold(machine)
    scheduler.release(machine)

    assert [] == list(scheduler.due())


def test_slots_lost_while_a_batch_runs_there_do_not_come_back() -> None:
    machine = slots(2, "cuda")
    scheduler, _ = scheduler_of(machine, batch("a", 1, device="cuda"))
    (start,) = scheduler.due()
    scheduler.submit(batch("two", 2, device="cuda"))

    scheduler.quarantine(start.slots)
    assert ["two"] == [stranded.batch_id for stranded in scheduler.stranded()]
    scheduler.ended("a")
    scheduler.submit(batch("b", 1, device="cuda"))
    scheduler.submit(batch("c", 1, device="cuda"))

    assert 1 == len(list(scheduler.due()))


def test_all_that_waits_can_be_taken_out() -> None:
    scheduler, _ = scheduler_of(slots(1), batch("a"), batch("b"), batch("wide", 4, device="cuda"))
    scheduler.submit(batch("alone", exclusive=True))
    (start,) = scheduler.due()

    rest = {each.batch_id for each in scheduler.withdraw()}

    assert {"a", "b", "wide", "alone"} - {start.batch.batch_id} == rest
    scheduler.ended(start.batch.batch_id)
    assert scheduler.idle


def test_ranks_that_their_test_starts_may_share_gpus() -> None:
    hosted = msgspec.structs.replace(batch("hosted", 4, device="cuda"), shares=True)
    scheduler, _ = scheduler_of(slots(2, "cuda"), hosted)

    (start,) = scheduler.due()

    assert 2 == len(start.slots)


def test_a_batch_is_known_once() -> None:
    scheduler, _ = scheduler_of(slots(1), batch("a"))

    with pytest.raises(ValueError, match="batch a was submitted twice"):
        scheduler.submit(batch("a"))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 0.0])
def test_unusable_estimates_do_no_harm(seconds: float) -> None:
    batches = [batch("odd", 1, seconds), batch("wide", 2, 3), batch("narrow", 1, 2)]

    simulation = simulate(batches, slots(2), durations_s={"odd": 1, "wide": 3, "narrow": 2})

    assert 3 == len(simulation.placements)
    assert 5 == simulation.makespan_s


Machine = st.builds(
    lambda cpu, gpu, group: (*slots(cpu), *slots(gpu, "cuda", group)),
    st.integers(1, 6),
    st.integers(0, 8),
    st.integers(0, 4),
)
Batches = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.sampled_from([0.0, 0.5, 1.0, 3.0, 30.0]),
        st.sampled_from(["cpu", "cuda"]),
        st.booleans(),
        st.booleans(),
        st.floats(0.01, 40),
    ),
    max_size=25,
)


@pytest.mark.slow("hypothesis draws many examples")
@settings(max_examples=300)
@given(machine=Machine, drawn=Batches, data=st.data())
def test_every_batch_runs_once_on_free_good_slots(
    machine: tuple[Slot, ...], drawn: list, data: st.DataObject
) -> None:
    """Whatever is submitted, however wrong the estimates, and whichever slots are lost or on hold on the way."""
    clock = VirtualClock()
    scheduler = BatchScheduler(machine, clock=clock)
    late = data.draw(st.integers(0, len(drawn)), label="submitted later")
    batches = [
        batch(str(n), size, seconds, device=device, exclusive=exclusive, urgent=urgent)
        for n, (size, seconds, device, exclusive, urgent, _) in enumerate(drawn)
    ]
    actual = {str(n): entry[-1] for n, entry in enumerate(drawn)}
    for each in batches[late:]:
        scheduler.submit(each)
    ran: list[str] = []
    stranded: list[str] = []
    lost: set[Slot] = set()
    on_hold: set[Slot] = set()
    held: dict[str, Start] = {}
    ends: list[tuple[float, str]] = []
    waiting = batches[:late]
    while True:
        for start in scheduler.due():
            taken = {slot for other in held.values() for slot in other.slots}
            assert not taken & set(start.slots), "double-booked"
            assert not lost & set(start.slots), "quarantined"
            assert not on_hold & set(start.slots), "on hold"
            assert not (held and start.batch.exclusive), "not alone"
            assert not any(other.batch.exclusive for other in held.values()), "disturbed"
            assert {start.batch.shape.device} == {slot.device for slot in start.slots}
            whole = sum(1 for slot in machine if slot.device == start.batch.shape.device and slot not in lost)
            assert min(start.batch.shape.size, whole) == len(set(start.slots)) == len(start.slots)
            ran.append(start.batch.batch_id)
            held[start.batch.batch_id] = start
            heappush(ends, (clock.now_s + actual[start.batch.batch_id], start.batch.batch_id))
        stranded += [each.batch_id for each in scheduler.stranded()]
        if not ends:
            if on_hold:
                scheduler.release(on_hold)
                on_hold.clear()
                continue
            if not waiting:
                break
            scheduler.submit(waiting.pop())
            continue
        clock.now_s, ended = heappop(ends)
        start = held.pop(ended)
        bad = data.draw(st.sets(st.sampled_from(start.slots), max_size=1)) if len(lost) < 2 else set()
        lost |= bad
        scheduler.release(on_hold)
        on_hold = data.draw(st.sets(st.sampled_from(machine), max_size=2))
        scheduler.hold(on_hold)
        scheduler.ended(ended, quarantined=bad)
        if waiting:
            scheduler.submit(waiting.pop())
    assert scheduler.idle
    assert sorted(each.batch_id for each in batches) == sorted(ran + stranded)
    for each in batches:
        if each.batch_id in stranded:
            left = sum(1 for s in machine if s.device == each.shape.device and s not in lost)
            assert left < each.shape.size


@settings(max_examples=100)
@given(machine=Machine, drawn=Batches)
def test_neither_gpus_nor_the_cpu_idle_for_the_sake_of_the_other(
    machine: tuple[Slot, ...], drawn: list
) -> None:
    """Whatever runs on the one, something that can runs on the other as long as anything waits for it."""
    clock = VirtualClock()
    scheduler = BatchScheduler(machine, clock=clock)
    takes_s = {str(n): entry[-1] for n, entry in enumerate(drawn)}
    waiting: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    running: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    for n, (size, seconds, device, _, urgent, _) in enumerate(drawn):
        scheduler.submit(batch(str(n), size, seconds, device=device, urgent=urgent))
        waiting[device].add(str(n))
    for lost in scheduler.stranded():
        waiting[lost.shape.device].remove(lost.batch_id)
    ends: list[tuple[float, str, str]] = []
    while any(waiting.values()):
        for start in scheduler.due():
            name, device = start.batch.batch_id, start.batch.shape.device
            waiting[device].remove(name)
            running[device].add(name)
            heappush(ends, (clock.now_s + takes_s[name], name, device))
        assert all(running[device] for device in ("cpu", "cuda") if waiting[device])
        clock.now_s, ended, device = heappop(ends)
        running[device].remove(ended)
        scheduler.ended(ended)


@pytest.mark.slow("hypothesis draws many examples")
@settings(max_examples=100)
@given(
    width=st.integers(2, 6),
    stream=st.lists(
        st.tuples(st.integers(1, 5), st.floats(0.01, 1.9), st.floats(0.1, 5)), min_size=1, max_size=12
    ),
    device=st.sampled_from(["cpu", "cuda"]),
)
def test_no_batch_waits_for_ever_while_it_could_run(width: int, stream: list, device: str) -> None:
    """An endless stream of narrower batches, whatever their estimates: the wide one starts after a bounded number."""
    clock = VirtualClock()
    scheduler = BatchScheduler((*slots(6), *slots(6, "cuda")), clock=clock)
    endless = enumerate(cycle(stream))
    takes_s: dict[str, float] = {}
    ends: list[tuple[float, str]] = []

    def submit_next() -> None:
        number, (size, expected_s, real_s) = next(endless)
        takes_s[str(number)] = real_s
        scheduler.submit(batch(str(number), min(size, width - 1), expected_s, device=device))

    for _ in range(6):
        submit_next()
    submitted = False
    # Up to the time that it was promised (less than 2 s ahead) six slots hold at most 20 batches each; see OVERTAKE_LIMIT.
    for _ in range(6 * 20 + 6 * OVERTAKE_LIMIT + 12):
        for start in scheduler.due():
            if start.batch.batch_id == "wide":
                return
            heappush(ends, (clock.now_s + takes_s[start.batch.batch_id], start.batch.batch_id))
            submit_next()
        if not submitted:
            scheduler.submit(batch("wide", width, 2.0, device=device))
            submitted = True
        clock.now_s, ended = heappop(ends)
        scheduler.ended(ended)
    pytest.fail("it still waits")


@pytest.mark.slow("hypothesis draws many examples")
@settings(max_examples=60)
@given(drawn=Batches)
def test_equal_input_gives_equal_decisions(drawn: list) -> None:
    batches = [
        batch(str(n), size, seconds, urgent=urgent)
        for n, (size, seconds, _, _, urgent, _) in enumerate(drawn)
    ]

    assert simulate(batches, slots(4)) == simulate(batches, slots(4))


@settings(max_examples=100)
@given(drawn=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.floats(0.1, 100)), min_size=1, max_size=40))
def test_the_makespan_is_not_under_its_bound_and_not_over_twice_of_it(drawn: list) -> None:
    """Widths that divide the machine: list scheduling stays under twice the bound (Garey and Graham, 1975)."""
    batches = [batch(str(n), size, seconds) for n, (size, seconds) in enumerate(drawn)]
    bound = lower_bound_s([(each.expected_s, each.shape.size) for each in batches], 4)

    makespan = simulate(batches, slots(4)).makespan_s

    assert bound - 1e-6 <= makespan <= 2 * bound + 1e-6
