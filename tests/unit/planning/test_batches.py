"""Which tests share a world."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import case

from disttest.model import ALONE, Isolation, TestCase, WorldKind
from disttest.planning.batches import build_batches
from disttest.planning.timings import Sample, Timings


def timed(tests: list[TestCase], *seconds: float) -> Timings:
    samples = [
        Sample(
            test=test.nodeid,
            duration_s=duration,
            size=test.world.size if test.world else 0,
            backend=test.world.backend if test.world else "",
            file=test.file,
            suite=test.suite,
        )
        for test, duration in zip(tests, seconds, strict=True)
    ]
    return Timings(samples)


def test_fresh_tests_are_alone_and_ordinary_tests_are_in_no_batch() -> None:
    tests = [case("a"), case("b"), case("plain", None)]

    batches = build_batches(tests, timed(tests, 1, 2, 3), slots=4)

    assert [(tests[0].nodeid,), (tests[1].nodeid,)] == [batch.nodeids for batch in batches]
    assert [1.3, 2.3] == [batch.expected_s for batch in batches]  # the start of a world on the CPU is 0.3 s


def test_contained_tests_of_a_file_share_a_process_and_nothing_runs_beside_them() -> None:
    def contained(name: str, file: str, isolation: Isolation = Isolation.WARM) -> TestCase:
        return msgspec.structs.replace(
            case(name, None, file=file), kind=WorldKind.PROCESS, isolation=isolation, exclusive=True
        )

    tests = [
        contained("a", "test_a.py"),
        contained("b", "test_a.py"),
        contained("c", "test_a.py", Isolation.FRESH),
        contained("d", "test_a.py", Isolation.FRESH),
        contained("e", "test_b.py"),
    ]

    batches = build_batches(tests, timed(tests, 1, 1, 1, 1, 1), slots=4)

    names = [tuple(nodeid.partition("::")[2] for nodeid in batch.nodeids) for batch in batches]
    assert [("a", "b"), ("c",), ("d",), ("e",)] == names
    assert all(batch.exclusive and batch.shape == ALONE for batch in batches)


def test_in_a_crowd_an_exclusive_test_does_not_share_its_batch() -> None:
    def contained(name: str, *, exclusive: bool) -> TestCase:
        return msgspec.structs.replace(
            case(name, None, warm=True, file="test_a.py"), kind=WorldKind.PROCESS, exclusive=exclusive
        )

    tests = [contained("a", exclusive=False), contained("b", exclusive=True), contained("c", exclusive=False)]

    batches = build_batches(tests, timed(tests, 1, 1, 1), slots=4)

    found = [(batch.nodeids, batch.exclusive) for batch in batches]
    assert [(("test_a.py::a", "test_a.py::c"), False), (("test_a.py::b",), True)] == found


def test_contained_files_that_share_fixtures_share_a_process_wherever_they_stand() -> None:
    def contained(file: str, *, shares: bool) -> TestCase:
        return msgspec.structs.replace(
            case("a", None, warm=True, file=file), kind=WorldKind.PROCESS, shares_process=shares
        )

    tests = [
        contained("test_a.py", shares=True),
        contained("test_b.py", shares=False),
        contained("test_c.py", shares=True),
    ]

    batches = build_batches(tests, timed(tests, 1, 1, 1), slots=4)

    assert [("test_a.py::a", "test_c.py::a"), ("test_b.py::a",)] == [batch.nodeids for batch in batches]


def test_together_all_files_share_a_world() -> None:
    tests = [case("a", file=f"{suite}/test_a.py", suite=suite, warm=True) for suite in "tu"]

    batches = build_batches(tests, timed(tests, 9, 9), slots=4, together=True)

    assert [tuple(test.nodeid for test in tests)] == [batch.nodeids for batch in batches]


def test_warm_tests_of_one_file_and_shape_share_a_batch() -> None:
    tests = [
        case("a", warm=True),
        case("b", warm=True),
        case("c", 4, warm=True),
        case("d", warm=True, backend="x"),
    ]

    batches = build_batches(tests, timed(tests, 1, 1, 1, 1), slots=4)

    assert [2, 1, 1] == [len(batch.nodeids) for batch in batches]
    assert ["2xgloo", "4xgloo", "2xx"] == [str(batch.shape) for batch in batches]


def test_small_files_of_a_suite_share_a_world_and_large_ones_do_not() -> None:
    small = [case("a", file=f"t/test_{n}.py", warm=True) for n in range(3)]
    large = [case("a", file=f"u/test_{n}.py", suite="u", warm=True) for n in range(2)]

    batches = build_batches([*small, *large], timed([*small, *large], 0.1, 0.05, 0.1, 5, 5), slots=2)

    assert [tuple(test.nodeid for test in small), (large[0].nodeid,), (large[1].nodeid,)] == [
        batch.nodeids for batch in batches
    ]


def test_a_long_file_is_split_when_that_fills_slots_and_costs_little() -> None:
    tests = [case(f"t{n}", 1, warm=True) for n in range(100)]
    timings = timed(tests, *[1.0] * 100)

    split = build_batches(tests, timings, slots=8)

    assert 8 <= len(split) <= 36  # about four pieces for each slot
    assert [test.nodeid for test in tests] == [nodeid for batch in split for nodeid in batch.nodeids]
    assert all(batch.expected_s >= 3 for batch in split)


def test_a_file_is_not_split_where_new_worlds_would_cost_more() -> None:
    tests = [case(f"t{n}", 1, warm=True) for n in range(20)]

    assert 1 == len(build_batches(tests, timed(tests, *[0.05] * 20), slots=8))


def test_files_are_split_by_the_slots_of_their_own_device() -> None:
    """Eight GPUs and one slot of the CPU: 100 tests there are one world, and do not count as work for the GPUs."""
    on_gpus = [case(f"g{n}", 1, warm=True, device="cuda") for n in range(100)]
    on_cpu = [case(f"c{n}", 1, warm=True) for n in range(100)]
    tests = [*on_cpu, *on_gpus]

    batches = build_batches(tests, timed(tests, *[1.0] * 200), slots=8, cpu_slots=1)

    alone = build_batches(on_gpus, timed(tests, *[1.0] * 200), slots=8)
    assert alone == batches[:-1]
    assert ("cpu", 100) == (batches[-1].shape.device, len(batches[-1].nodeids))


def test_files_whose_tests_start_ranks_are_split_for_slots_that_may_be_lent() -> None:
    kept = [case(f"t{n}", 2, warm=True) for n in range(100)]
    started = [msgspec.structs.replace(test, kind=WorldKind.MAIN) for test in kept]
    timings = timed(kept, *[1.0] * 100)

    assert 1 == len(build_batches(started, timings, slots=2))
    assert 1 == len(build_batches(kept, timings, slots=2, spare=2))
    assert 8 == len(build_batches(started, timings, slots=2, spare=2))


def test_exclusive_tests_have_batches_of_their_own() -> None:
    tests = [case("a", warm=True), case("b", warm=True, exclusive=True)]

    assert [False, True] == [batch.exclusive for batch in build_batches(tests, Timings(), slots=4)]


def test_failed_tests_lead_urgent_batches() -> None:
    tests = [case("a", warm=True), case("b", warm=True), case("c")]

    batches = build_batches(tests, Timings(), slots=4, failed={tests[1].nodeid})

    assert (tests[1].nodeid, tests[0].nodeid) == batches[0].nodeids
    assert [True, False] == [batch.urgent for batch in batches]


@given(
    drawn=st.lists(
        st.tuples(
            st.sampled_from([None, 1, 2, 4]),
            st.integers(0, 3),
            st.booleans(),
            st.booleans(),
            st.sampled_from(["cpu", "cuda"]),
            st.floats(0, 50),
        ),
        max_size=40,
    ),
    slots=st.integers(1, 16),
    cpu_slots=st.integers(0, 4),
)
def test_every_world_test_is_in_exactly_one_batch_of_its_shape(
    drawn: list, slots: int, cpu_slots: int
) -> None:
    tests = [
        case(f"t{n}", size, file=f"test_{file}.py", warm=warm, exclusive=exclusive, device=device)
        for n, (size, file, warm, exclusive, device, _) in enumerate(drawn)
    ]
    by_id = {test.nodeid: test for test in tests}

    timings = timed(tests, *(entry[-1] for entry in drawn))
    batches = build_batches(tests, timings, slots=slots, cpu_slots=cpu_slots)

    placed = [nodeid for batch in batches for nodeid in batch.nodeids]
    assert sorted(placed) == sorted(test.nodeid for test in tests if test.world)
    assert len({batch.batch_id for batch in batches}) == len(batches)
    for batch in batches:
        for test in (by_id[nodeid] for nodeid in batch.nodeids):
            assert (batch.shape, batch.isolation, batch.exclusive) == (
                test.world,
                test.isolation,
                test.exclusive,
            )
