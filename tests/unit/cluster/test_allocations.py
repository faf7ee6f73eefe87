"""Pools of a scheduler: what `--pool NAME:slurm:…` says, and which allocations come of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import case

from disttest.errors import NotEnoughDevices, SchedulerError, UsageError
from disttest.extras.cluster.allocations import NodePool, allocate
from disttest.extras.shards.pools import Size, parse_pool, parse_pools
from disttest.extras.shards.shard_plan import (
    Grant,
    decode_plan,
    encode_plan,
    plan_shards,
    render_matrix,
    select,
)
from disttest.model import TestCase
from disttest.planning.timings import Sample, Timings

POOL = NodePool(nodes=4, gpus_per_node=8, cpus_per_node=64)


def wide(name: str, size: int | None, nodes: int = 1) -> TestCase:
    return case(name, size, nodes=nodes, backend="nccl", device="cuda")


def taking(tests: list[TestCase], seconds: dict[str, float]) -> Timings:
    return Timings(
        Sample(
            test=test.nodeid,
            duration_s=seconds[test.name[0]],
            size=test.world.size if test.world else None,
            backend=test.world.backend if test.world else None,
        )
        for test in tests
    )


def shapes(tests: list[TestCase], timings: Timings, **options: float) -> list[tuple[int, int, int]]:
    made = allocate(tests, timings, POOL, **{"at_once": 16, **options})
    return [(each.nodes, each.ranks_per_node, len(each.tests)) for each in made]


class TestAllocations:
    def test_the_largest_come_first_and_worlds_that_span_nodes_come_alone(self) -> None:
        tests = [wide("a", 8), wide("b", 16, 2), wide("c", 32, 4), wide("d", 1), wide("e", 16, 4)]

        assert [(4, 8, 1), (2, 8, 1), (4, 4, 1), (1, 8, 2)] == shapes(tests, Timings())

    def test_worlds_of_one_shape_share_as_many_allocations_as_the_pool_holds(self) -> None:
        tests = [wide(f"b{number}", 16, 2) for number in range(6)]

        made = allocate(tests, Timings(), POOL, at_once=16)

        assert [3, 3] == [len(each.tests) for each in made]
        assert all(sorted(n for world in each.worlds for n in world) == [0, 1, 2] for each in made)

    def test_one_world_of_each_shape(self) -> None:
        tests = [case(f"b{n}", 16, nodes=2, file=f"f{n}.py", warm=True, device="cuda") for n in range(3)]
        timings = taking(tests, {"b": 60})

        (made,) = allocate(tests, timings, POOL, at_once=16, together=True)

        assert ((0, 1, 2),) == made.worlds
        assert 2 == len(allocate(tests, timings, POOL, at_once=16))

    def test_worlds_with_tests_that_failed_go_first(self) -> None:
        tests = [
            case(f"b{number}", 16, nodes=4, file=f"f{number}.py", warm=True, backend="nccl", device="cuda")
            for number in range(9)
        ]

        (made,) = allocate(tests, Timings(), POOL, at_once=1, failed={tests[7].nodeid})

        assert tests[7] == made.tests[made.worlds[0][0]]

    def test_short_work_is_one_lease_as_wide_as_its_widest_world(self) -> None:
        tests = [wide("a", 4), *(wide(f"b{number}", 1) for number in range(9))]

        assert [(1, 4, 10)] == shapes(tests, taking(tests, {"a": 5, "b": 5}))

    def test_what_is_less_than_the_wider_work_rides_along(self) -> None:
        tests = [
            *(wide(f"a{number}", 8) for number in range(3)),
            *(wide(f"b{number}", 1) for number in range(9)),
        ]

        assert [(1, 8), (1, 8)] == [made[:2] for made in shapes(tests, taking(tests, {"a": 30, "b": 60}))]

    def test_a_width_that_most_work_has_does_not_wait_for_whole_nodes(self) -> None:
        tests = [wide("a", 8), wide("c", 2), *(wide(f"b{number}", 1) for number in range(9))]

        # Nine minutes of one GPU: nine leases of one; the two seconds of two GPUs fill a gap of the wide one.
        assert [(1, 8, 2), *[(1, 1, 1)] * 9] == shapes(tests, taking(tests, {"a": 2, "b": 60, "c": 2}))

    @pytest.mark.parametrize(("at_once", "widths"), [(64, {1, 8}), (32, {1, 8}), (16, {2, 8}), (5, {8})])
    def test_leases_are_as_wide_as_it_takes_for_so_many_to_fill_the_pool(
        self, at_once: int, widths: set[int]
    ) -> None:
        tests = [wide("a", 8), *(wide(f"b{number}", 1) for number in range(99))]

        made = allocate(tests, taking(tests, {"a": 60, "b": 60}), POOL, at_once=at_once)

        assert widths == {each.ranks_per_node for each in made}

    def test_there_are_no_more_leases_than_work_nodes_or_asked_for(self) -> None:
        tests = [wide(f"a{number}", 8) for number in range(40)]
        timings = taking(tests, {"a": 60})

        assert 4 == len(shapes(tests, timings))
        assert 3 == len(shapes(tests, timings, at_once=3))
        assert 2 == len(shapes(tests, timings, least_s=1200))

    def test_ordinary_tests_and_cpu_worlds_take_processors(self) -> None:
        (made,) = allocate([case("a", None), case("b", 4)], Timings(), POOL, at_once=4)

        assert ("cpu", 4, 2) == (made.device, made.ranks_per_node, len(made.tests))

    def test_ordinary_tests_make_no_lease_wide(self) -> None:
        tests = [case(f"a{number}", None) for number in range(9)]

        (made,) = allocate(tests, taking(tests, {"a": 60}), POOL, at_once=1)

        assert (1, 9) == (made.ranks_per_node, len(made.tests))

    @pytest.mark.slow("hypothesis draws many examples")
    @given(
        drawn=st.lists(
            st.tuples(st.sampled_from([None, 1, 2, 8, 16]), st.sampled_from([1, 2, 4]), st.floats(0.1, 300)),
            max_size=30,
        ),
        at_once=st.integers(1, 20),
    )
    def test_every_test_is_in_one_allocation_that_fits_the_pool(self, drawn: list, at_once: int) -> None:
        tests = [
            wide(f"t{number}", size, nodes if size and size % nodes == 0 and size // nodes <= 8 else 1)
            for number, (size, nodes, _) in enumerate(drawn)
        ]
        tests = [test for test in tests if not test.world or test.world.ranks_per_node <= 8]
        samples = [Sample(test=test.nodeid, duration_s=drawn[0][2]) for test in tests]
        made = allocate(tests, Timings(samples), POOL, at_once=at_once)

        names = [test.nodeid for each in made for test in each.tests]
        assert sorted(names) == sorted(test.nodeid for test in tests)
        assert all(each.nodes <= 4 and each.ranks_per_node <= 8 for each in made)
        assert [each.width for each in made] == sorted((each.width for each in made), reverse=True)
        for each in made:
            assert bool(each.worlds) == (each.nodes > 1)


class TestWords:
    def test_what_the_words_say_is_not_asked_for(self) -> None:
        pool = parse_pool("big:slurm:gpu:16x8:0.5")

        assert ("big", "slurm", "gpu") == (pool.name, pool.scheduler, pool.partition)
        assert (16, 8, 0.5, ("big",)) == (pool.runners, pool.gpus, pool.cost_per_minute, pool.labels)
        assert "" == parse_pool("big:slurm::2x4").partition

    @pytest.mark.parametrize(
        ("text", "partition"), [("a:slurm", ""), ("a:slurm:gpu", "gpu"), ("a:SLURM:gpu:", "gpu")]
    )
    def test_what_they_do_not_say_is_asked_of_the_scheduler(self, text: str, partition: str) -> None:
        asked: list[tuple[str, str]] = []

        def ask(scheduler: str, named: str) -> Size:
            asked.append((scheduler, named))
            return Size(nodes=3, gpus=2)

        pool = parse_pool(text, ask)

        assert [("slurm", partition)] == asked
        assert (3, 2, 2.0) == (pool.runners, pool.gpus, pool.cost_per_minute)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("big:slurm:gpu", "does not say how large the pool is"),
            ("big:slurm:gpu:16", "'16' is not NODESxGPUS, such as 16x8"),
            ("big:slurm:gpu:0x8", "'0x8' is not NODESxGPUS"),
            ("big:slurm:gpu:16x", "'16x' is not NODESxGPUS"),
            ("big:slurm:gpu:16x8:free", "the cost per minute must be a number of at least 0, not 'free'"),
            ("big:slurm:gpu:16x8:1:1", "cannot be read; write NAME:slurm"),
            ("big:slurm:$(id)", "cannot be read; write NAME:slurm"),
            ("big:slurm:--all", "cannot be read; write NAME:slurm"),
            (":slurm:gpu:1x1", "cannot be read; write NAME:slurm"),
            ("big:pbs:gpu", "GPUs per runner must be a whole number of at least 1, not 'pbs'"),
            ("big:pbs", "or NAME:slurm"),
        ],
    )
    def test_bad_words_are_refused(self, text: str, message: str) -> None:
        with pytest.raises(UsageError, match="--pool") as caught:
            parse_pool(text)

        assert message in str(caught.value)

    def test_what_the_scheduler_says_instead_of_an_answer_is_passed_on(self) -> None:
        def refuse(_scheduler: str, _partition: str) -> Size:
            raise SchedulerError("Slurm says: no such partition")

        with pytest.raises(SchedulerError, match="no such partition") as caught:
            parse_pools(["big:slurm:gpu"], (), refuse)

        assert "--pool 'big:slurm:gpu': Slurm says" in str(caught.value)
        assert "give its size (NAME:slurm:PARTITION:NODESxGPUS)" in str(caught.value)


class TestPlans:
    POOLS = parse_pools(["gpu1:1:2", "big:slurm:gpu:4x8"], ["big=submits"])

    def test_worlds_that_span_nodes_go_to_the_scheduler_and_small_ones_to_the_cheap_runners(self) -> None:
        tests = [wide("a", 1), wide("b", 8), wide("c", 16, 2)]

        plan = plan_shards(tests, Timings(), pools=self.POOLS, spread=2)

        assert ["gpu1-1", "big-1", "big-2"] == [shard.name for shard in plan.shards]
        assert plan.shards[0].grant is None
        assert Grant(scheduler="slurm", partition="gpu", nodes=2, ranks_per_node=8, spread=2) == (
            plan.shards[1].grant
        )
        assert [1, 16, 8] == [shard.gpus for shard in plan.shards]
        assert plan == decode_plan(encode_plan(plan))

    def test_the_matrix_says_which_jobs_submit(self) -> None:
        plan = plan_shards([wide("a", 1), wide("c", 16, 2)], Timings(), pools=self.POOLS)

        entries = render_matrix(plan)["include"]

        assert [("", 1, 1, ["gpu1"]), ("slurm", 2, 16, ["submits"])] == [
            (entry["launcher"], entry["nodes"], entry["gpus"], entry["labels"]) for entry in entries
        ]
        assert [1, 2] == [entry["shard"] for entry in entries]

    def test_what_appears_later_goes_where_any_shape_finds_a_place(self) -> None:
        plan = plan_shards([wide("a", 8)], Timings(), pools=parse_pools(["runner:8:1:0.1", "z:slurm::2x1"]))
        assert ["runner-1"] == [shard.name for shard in plan.shards]
        plan = plan_shards([wide("a", 1), wide("b", 8)], Timings(), pools=self.POOLS)

        assert (wide("new", 16, 2).nodeid,) == select(plan, 2, [wide("new", 16, 2)]).run

    def test_a_shape_that_no_pool_holds_is_named_with_its_nodes(self) -> None:
        with pytest.raises(NotEnoughDevices) as caught:
            plan_shards([wide("a", 64, 8), wide("b", 16)], Timings(), pools=self.POOLS)

        assert "16 ranks for tests/test_a.py::b[16xnccl]; 64 ranks over 8 nodes for " in str(caught.value)
        assert "add one like --pool big-nodes:slurm::8x8" in str(caught.value)

    def test_runners_do_not_hold_what_spans_nodes(self) -> None:
        with pytest.raises(NotEnoughDevices, match="no pool holds 2 ranks over 2 nodes"):
            plan_shards([wide("a", 2, 2)], Timings(), pools=parse_pools(["gpu8:8:2"]))
