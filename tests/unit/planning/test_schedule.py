"""The gang scheduler: by example, and by Hypothesis against a fake clock."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import cycle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import gang, slots

from disttest.model import Gang, Slot
from disttest.planning.schedule import OVERTAKE_LIMIT, GangScheduler, Start
from disttest.planning.simulate import VirtualClock, lower_bound_s, simulate


def scheduler_of(machine: tuple[Slot, ...], *gangs: Gang) -> tuple[GangScheduler, VirtualClock]:
    clock = VirtualClock()
    scheduler = GangScheduler(machine, clock=clock)
    for each in gangs:
        scheduler.submit(each)
    return scheduler, clock


def names(starts: list[Start]) -> list[str]:
    return [start.gang.gang_id for start in starts]


def test_gangs_share_the_machine() -> None:
    scheduler, _ = scheduler_of(slots(4), gang("a", 2), gang("b", 2), gang("c", 2))

    first = list(scheduler.due())

    assert ["a", "b"] == names(first)
    assert 4 == len({slot for start in first for slot in start.slots})
    assert [] == list(scheduler.due())
    scheduler.ended("a")
    assert ["c"] == names(list(scheduler.due()))


def test_a_world_with_more_ranks_than_gpus_takes_all_of_them_if_they_may_be_shared() -> None:
    gpus = slots(2, "cuda")
    gangs = [gang("wide", 4, device="cuda"), gang("wider", 5, device="cuda"), gang("fits", 2, device="cuda")]
    alone, shared = (
        GangScheduler(gpus, clock=VirtualClock(), ranks_per_gpu=ranks_per_gpu) for ranks_per_gpu in (1, 2)
    )
    for each in gangs:
        alone.submit(each)
        shared.submit(each)

    assert [("fits", gpus)] == [(start.gang.gang_id, start.slots) for start in alone.due()]
    assert ["wide", "wider"] == [each.gang_id for each in alone.stranded()]
    assert [("wide", gpus)] == [(start.gang.gang_id, start.slots) for start in shared.due()]
    assert ["wider"] == [each.gang_id for each in shared.stranded()]


def test_wide_gangs_go_first_and_of_one_width_the_longest() -> None:
    machine = slots(2)
    short, long, wide = gang("short", 1, 1), gang("long", 1, 2), gang("wide", 2, 3)

    simulation = simulate((short, long, wide), machine)

    assert ["wide", "long", "short"] == [placed.start.gang.gang_id for placed in simulation.placements]


def test_a_gang_that_would_outlast_all_else_starts_at_once() -> None:
    simulation = simulate((*(gang(f"w{n}", 2, 1) for n in range(4)), gang("long", 1, 20)), slots(4))

    assert "long" == simulation.placements[0].start.gang.gang_id
    assert 20 == simulation.makespan_s


def test_a_gang_that_does_not_fit_is_overtaken_only_by_what_does_not_delay_it() -> None:
    scheduler, clock = scheduler_of(slots(4), gang("running", 3, 10))
    list(scheduler.due())
    scheduler.submit(gang("wide", 4, 30))
    scheduler.submit(gang("too-long", 1, 11))
    scheduler.submit(gang("in-time", 1, 9))

    assert ["in-time"] == names(list(scheduler.due()))
    clock.now_s = 9
    scheduler.ended("in-time")
    assert [] == list(scheduler.due())
    clock.now_s = 10
    scheduler.ended("running")
    assert ["wide"] == names(list(scheduler.due()))


def test_estimates_that_are_always_wrong_can_not_starve_a_wide_gang() -> None:
    """A stream of gangs that promise to be short and are not: the wide one gets its turn all the same."""
    scheduler, clock = scheduler_of(slots(3), *(gang(f"first{n}", 1, 0.001) for n in range(3)))
    running = names(list(scheduler.due()))
    scheduler.submit(gang("wide", 2, 100))
    overtakes = 0
    for number in range(100):
        # Two are overdue at any time, so there seems to be room for the wide one and for another beside it.
        clock.now_s += 1
        scheduler.ended(running.pop(0))
        scheduler.submit(gang(f"liar{number}", 1, 0.001))
        started = names(list(scheduler.due()))
        if "wide" in started:
            break
        overtakes += len(started)
        running += started
    else:
        pytest.fail("the wide gang never started")
    assert 0 < overtakes <= OVERTAKE_LIMIT * 3 + 1  # one of them before the promised time had passed


def test_a_gang_that_has_to_wait_long_lets_all_pass_that_do_not_delay_it() -> None:
    long, wide = gang("long", 1, 100), gang("wide", 4, 10)
    short = [gang(f"s{n}", 1, 1) for n in range(290)]

    simulation = simulate((long, wide, *short), slots(4))

    # The short ones fill the three slots beside the long one; nothing idles for the sake of the wide one.
    assert 110 >= simulation.makespan_s


def test_exclusive_gangs_run_alone() -> None:
    scheduler, _ = scheduler_of(slots(4), gang("a", 1), gang("alone", 1, exclusive=True), gang("b", 1))

    assert ["alone"] == names(list(scheduler.due()))
    scheduler.ended("alone")
    assert ["a", "b"] == names(list(scheduler.due()))
    scheduler.submit(gang("again", 1, exclusive=True))
    assert [] == list(scheduler.due())
    scheduler.ended("a")
    assert [] == list(scheduler.due())
    scheduler.ended("b")
    assert ["again"] == names(list(scheduler.due()))


def test_urgent_gangs_go_first() -> None:
    scheduler, _ = scheduler_of(slots(2), gang("wide", 2, 50), gang("failed-last-time", 1, 1, urgent=True))

    assert "failed-last-time" == next(iter(scheduler.due())).gang.gang_id


def test_urgent_gangs_go_before_longer_ones_of_their_width() -> None:
    simulation = simulate((gang("long", 1, 50), gang("failed-last-time", 1, 1, urgent=True)), slots(1))

    assert "failed-last-time" == simulation.placements[0].start.gang.gang_id


def test_cpu_and_gpu_slots_are_used_at_once() -> None:
    machine = (*slots(2), *slots(2, "cuda"))
    scheduler, _ = scheduler_of(machine, gang("on-cpu", 2), gang("on-gpu", 2, device="cuda"))

    started = {start.gang.gang_id: {slot.device for slot in start.slots} for start in scheduler.due()}

    assert {"on-cpu": {"cpu"}, "on-gpu": {"cuda"}} == started


def test_near_gpus_are_preferred_and_large_groups_kept_whole() -> None:
    machine = (
        *slots(4, "cuda", group_size=4),
        *(Slot(name=f"gpu:{n}", device="cuda", index=n, group="pair") for n in (4, 5)),
    )
    scheduler, _ = scheduler_of(machine, gang("two", 2, device="cuda"))

    (start,) = scheduler.due()

    assert [4, 5] == [slot.index for slot in start.slots]


def test_without_a_whole_group_the_fewest_groups_are_used() -> None:
    scheduler, _ = scheduler_of(slots(6, "cuda", group_size=3), gang("four", 4, device="cuda"))

    (start,) = scheduler.due()

    assert [0, 1, 2, 3] == [slot.index for slot in start.slots]


def test_a_world_larger_than_the_cpu_takes_all_of_it() -> None:
    scheduler, _ = scheduler_of(slots(2), gang("eight", 8))

    (start,) = scheduler.due()

    assert 2 == len(start.slots)


def test_a_world_larger_than_the_gpus_is_stranded() -> None:
    eight = gang("eight", 8, device="cuda")
    scheduler, _ = scheduler_of(slots(4, "cuda"), eight)

    assert [] == list(scheduler.due())
    assert not scheduler.idle
    assert (eight,) == scheduler.stranded()
    assert scheduler.idle


def test_slots_that_are_lent_take_one_more_gang_until_they_are_recalled() -> None:
    scheduler, _ = scheduler_of(slots(2), *(gang(name, 2) for name in "abcd"))
    spare = slots(6)[2:]
    assert 2 == scheduler.narrowest
    assert ["a"] == names(list(scheduler.due()))

    scheduler.lend(spare[:2])
    (start,) = scheduler.due()
    assert ("b", spare[:2]) == (start.gang.gang_id, start.slots)
    scheduler.recall(spare[:2])
    scheduler.ended("b")
    assert [] == list(scheduler.due())

    scheduler.lend(spare)
    assert ["c", "d"] == names(list(scheduler.due()))
    assert 0 == scheduler.narrowest


def test_of_slots_that_were_lent_some_are_recalled() -> None:
    scheduler, _ = scheduler_of(slots(1), *(gang(name) for name in "abcdef"))
    spare = slots(4)[1:]
    scheduler.lend(spare)
    assert 4 == len(list(scheduler.due()))

    scheduler.recall(spare[1:])
    scheduler.ended("b")
    scheduler.ended("c")

    assert [spare[:1]] == [start.slots for start in scheduler.due()]


def test_slots_that_are_lent_again_while_something_runs_on_them_are_used_after_it() -> None:
    scheduler, _ = scheduler_of(slots(1), *(gang(name) for name in "abc"))
    spare = slots(2)[1:]
    scheduler.lend(spare)
    assert ["a", "b"] == names(list(scheduler.due()))

    scheduler.recall(spare)
    scheduler.lend(spare)
    assert [] == list(scheduler.due())
    scheduler.ended("b")

    assert [spare] == [start.slots for start in scheduler.due()]


def test_a_world_is_as_wide_as_the_machine_whatever_is_lent() -> None:
    scheduler, _ = scheduler_of(slots(2), gang("running", 2))
    list(scheduler.due())
    scheduler.lend(slots(8)[2:])
    scheduler.submit(gang("wider than the machine", 4))
    scheduler.submit(gang("other", 2))

    assert [2, 2] == [len(start.slots) for start in scheduler.due()]


def test_nothing_is_lent_to_an_exclusive_gang_nor_runs_beside_it() -> None:
    scheduler, _ = scheduler_of(slots(2), gang("alone", 2, exclusive=True), gang("other", 2))
    scheduler.lend(slots(4)[2:])

    assert ["alone"] == names(list(scheduler.due()))


def test_a_slot_that_was_lent_and_is_lost_is_lost() -> None:
    scheduler, _ = scheduler_of(slots(1), gang("own", 1), gang("lent", 1), gang("waits", 1))
    spare = slots(2)[1:]
    scheduler.lend(spare)
    assert ["own", "lent"] == names(list(scheduler.due()))

    scheduler.ended("lent", quarantined=spare)
    scheduler.ended("own")

    (start,) = scheduler.due()
    assert slots(1) == start.slots
    assert () == scheduler.stranded()


def test_quarantined_slots_are_not_used_and_what_needs_them_is_stranded() -> None:
    machine = slots(2, "cuda")
    scheduler, _ = scheduler_of(machine, gang("a", 1, device="cuda"))
    (start,) = scheduler.due()
    scheduler.submit(gang("two", 2, device="cuda"))
    scheduler.submit(gang("one", 1, device="cuda"))

    scheduler.ended("a", quarantined=start.slots)

    assert ["two"] == [stranded.gang_id for stranded in scheduler.stranded()]
    (last,) = scheduler.due()
    assert not set(start.slots) & set(last.slots)


def test_quarantine_of_all_cpu_slots_strands_everything() -> None:
    scheduler, _ = scheduler_of(slots(1), gang("a"))
    (start,) = scheduler.due()
    scheduler.submit(gang("b"))
    scheduler.submit(gang("c", exclusive=True))

    scheduler.ended("a", quarantined=start.slots)

    assert {"b", "c"} == {stranded.gang_id for stranded in scheduler.stranded()}
    assert scheduler.idle


def test_slots_on_hold_are_not_handed_out_and_still_count() -> None:
    machine = slots(2, "cuda")
    scheduler, _ = scheduler_of(machine, gang("a", 1, device="cuda"), gang("two", 2, device="cuda"))
    scheduler.hold(machine[:1])

    (start,) = scheduler.due()
    scheduler.hold(start.slots)
    scheduler.ended("a")

    assert ([], ()) == (list(scheduler.due()), scheduler.stranded())
    scheduler.release(machine)
    assert ["two"] == names(list(scheduler.due()))


def test_the_release_of_a_taken_slot_does_not_hand_it_out_twice() -> None:
    machine = slots(1, "cuda")
    scheduler, _ = scheduler_of(machine, gang("a", 1, device="cuda"), gang("b", 1, device="cuda"))
    list(scheduler.due())

    scheduler.hold(machine)
    scheduler.release(machine)

    assert [] == list(scheduler.due())


def test_slots_lost_while_a_gang_runs_there_do_not_come_back() -> None:
    machine = slots(2, "cuda")
    scheduler, _ = scheduler_of(machine, gang("a", 1, device="cuda"))
    (start,) = scheduler.due()
    scheduler.submit(gang("two", 2, device="cuda"))

    scheduler.quarantine(start.slots)
    assert ["two"] == [stranded.gang_id for stranded in scheduler.stranded()]
    scheduler.ended("a")
    scheduler.submit(gang("b", 1, device="cuda"))
    scheduler.submit(gang("c", 1, device="cuda"))

    assert 1 == len(list(scheduler.due()))


def test_all_that_waits_can_be_taken_out() -> None:
    scheduler, _ = scheduler_of(slots(1), gang("a"), gang("b"), gang("wide", 4, device="cuda"))
    scheduler.submit(gang("alone", exclusive=True))
    (start,) = scheduler.due()

    rest = {each.gang_id for each in scheduler.withdraw()}

    assert {"a", "b", "wide", "alone"} - {start.gang.gang_id} == rest
    scheduler.ended(start.gang.gang_id)
    assert scheduler.idle


def test_ranks_that_their_test_starts_may_share_gpus() -> None:
    hosted = msgspec.structs.replace(gang("hosted", 4, device="cuda"), shares=True)
    scheduler, _ = scheduler_of(slots(2, "cuda"), hosted)

    (start,) = scheduler.due()

    assert 2 == len(start.slots)


def test_a_gang_is_known_once() -> None:
    scheduler, _ = scheduler_of(slots(1), gang("a"))

    with pytest.raises(ValueError, match="gang a was submitted twice"):
        scheduler.submit(gang("a"))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 0.0])
def test_unusable_estimates_do_no_harm(seconds: float) -> None:
    gangs = [gang("odd", 1, seconds), gang("wide", 2, 3), gang("narrow", 1, 2)]

    simulation = simulate(gangs, slots(2), durations_s={"odd": 1, "wide": 3, "narrow": 2})

    assert 3 == len(simulation.placements)
    assert 5 == simulation.makespan_s


Machine = st.builds(
    lambda cpu, gpu, group: (*slots(cpu), *slots(gpu, "cuda", group)),
    st.integers(1, 6),
    st.integers(0, 8),
    st.integers(0, 4),
)
Gangs = st.lists(
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


@settings(max_examples=300)
@given(machine=Machine, drawn=Gangs, data=st.data())
def test_every_gang_runs_once_on_free_good_slots(
    machine: tuple[Slot, ...], drawn: list, data: st.DataObject
) -> None:
    """Whatever is submitted, however wrong the estimates, and whichever slots are lost or on hold on the way."""
    clock = VirtualClock()
    scheduler = GangScheduler(machine, clock=clock)
    late = data.draw(st.integers(0, len(drawn)), label="submitted later")
    gangs = [
        gang(str(n), size, seconds, device=device, exclusive=exclusive, urgent=urgent)
        for n, (size, seconds, device, exclusive, urgent, _) in enumerate(drawn)
    ]
    actual = {str(n): entry[-1] for n, entry in enumerate(drawn)}
    for each in gangs[late:]:
        scheduler.submit(each)
    ran: list[str] = []
    stranded: list[str] = []
    lost: set[Slot] = set()
    on_hold: set[Slot] = set()
    held: dict[str, Start] = {}
    ends: list[tuple[float, str]] = []
    waiting = gangs[:late]
    while True:
        for start in scheduler.due():
            taken = {slot for other in held.values() for slot in other.slots}
            assert not taken & set(start.slots), "double-booked"
            assert not lost & set(start.slots), "quarantined"
            assert not on_hold & set(start.slots), "on hold"
            assert not (held and start.gang.exclusive), "not alone"
            assert not any(other.gang.exclusive for other in held.values()), "disturbed"
            assert {start.gang.shape.device} == {slot.device for slot in start.slots}
            whole = sum(1 for slot in machine if slot.device == start.gang.shape.device and slot not in lost)
            assert min(start.gang.shape.size, whole) == len(set(start.slots)) == len(start.slots)
            ran.append(start.gang.gang_id)
            held[start.gang.gang_id] = start
            heappush(ends, (clock.now_s + actual[start.gang.gang_id], start.gang.gang_id))
        stranded += [each.gang_id for each in scheduler.stranded()]
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
    assert sorted(each.gang_id for each in gangs) == sorted(ran + stranded)
    for each in gangs:
        if each.gang_id in stranded:
            left = sum(1 for s in machine if s.device == each.shape.device and s not in lost)
            assert left < each.shape.size


@settings(max_examples=100)
@given(machine=Machine, drawn=Gangs)
def test_neither_gpus_nor_the_cpu_idle_for_the_sake_of_the_other(
    machine: tuple[Slot, ...], drawn: list
) -> None:
    """Whatever runs on the one, something that can runs on the other as long as anything waits for it."""
    clock = VirtualClock()
    scheduler = GangScheduler(machine, clock=clock)
    takes_s = {str(n): entry[-1] for n, entry in enumerate(drawn)}
    waiting: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    running: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    for n, (size, seconds, device, _, urgent, _) in enumerate(drawn):
        scheduler.submit(gang(str(n), size, seconds, device=device, urgent=urgent))
        waiting[device].add(str(n))
    for lost in scheduler.stranded():
        waiting[lost.shape.device].remove(lost.gang_id)
    ends: list[tuple[float, str, str]] = []
    while any(waiting.values()):
        for start in scheduler.due():
            name, device = start.gang.gang_id, start.gang.shape.device
            waiting[device].remove(name)
            running[device].add(name)
            heappush(ends, (clock.now_s + takes_s[name], name, device))
        assert all(running[device] for device in ("cpu", "cuda") if waiting[device])
        clock.now_s, ended, device = heappop(ends)
        running[device].remove(ended)
        scheduler.ended(ended)


@settings(max_examples=100)
@given(
    width=st.integers(2, 6),
    stream=st.lists(
        st.tuples(st.integers(1, 5), st.floats(0.01, 1.9), st.floats(0.1, 5)), min_size=1, max_size=12
    ),
    device=st.sampled_from(["cpu", "cuda"]),
)
def test_no_gang_waits_for_ever_while_it_could_run(width: int, stream: list, device: str) -> None:
    """An endless stream of narrower gangs, whatever their estimates: the wide one starts after a bounded number."""
    clock = VirtualClock()
    scheduler = GangScheduler((*slots(6), *slots(6, "cuda")), clock=clock)
    endless = enumerate(cycle(stream))
    takes_s: dict[str, float] = {}
    ends: list[tuple[float, str]] = []

    def submit_next() -> None:
        number, (size, expected_s, real_s) = next(endless)
        takes_s[str(number)] = real_s
        scheduler.submit(gang(str(number), min(size, width - 1), expected_s, device=device))

    for _ in range(6):
        submit_next()
    submitted = False
    # Up to the time that it was promised (less than 2 s ahead) six slots hold at most 20 gangs each; see OVERTAKE_LIMIT.
    for _ in range(6 * 20 + 6 * OVERTAKE_LIMIT + 12):
        for start in scheduler.due():
            if start.gang.gang_id == "wide":
                return
            heappush(ends, (clock.now_s + takes_s[start.gang.gang_id], start.gang.gang_id))
            submit_next()
        if not submitted:
            scheduler.submit(gang("wide", width, 2.0, device=device))
            submitted = True
        clock.now_s, ended = heappop(ends)
        scheduler.ended(ended)
    pytest.fail("it still waits")


@settings(max_examples=60)
@given(drawn=Gangs)
def test_equal_input_gives_equal_decisions(drawn: list) -> None:
    gangs = [
        gang(str(n), size, seconds, urgent=urgent) for n, (size, seconds, _, _, urgent, _) in enumerate(drawn)
    ]

    assert simulate(gangs, slots(4)) == simulate(gangs, slots(4))


@settings(max_examples=100)
@given(drawn=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.floats(0.1, 100)), min_size=1, max_size=40))
def test_the_makespan_is_not_under_its_bound_and_not_over_twice_of_it(drawn: list) -> None:
    """Widths that divide the machine: list scheduling stays under twice the bound (Garey and Graham, 1975)."""
    gangs = [gang(str(n), size, seconds) for n, (size, seconds) in enumerate(drawn)]
    bound = lower_bound_s([(each.expected_s, each.shape.size) for each in gangs], 4)

    makespan = simulate(gangs, slots(4)).makespan_s

    assert bound - 1e-6 <= makespan <= 2 * bound + 1e-6
