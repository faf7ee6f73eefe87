"""What past runs teach about durations."""

from __future__ import annotations

import random

import msgspec
import pytest
from planning_cases import case

from disttest.model import Hardware, WorldShape
from disttest.planning.timings import UNKNOWN_S, WINDOW, Sample, Timings, WorldStart, hardware_key

TEST = case("test_a", 2)


def sample(
    seconds: float, *, test: str = TEST.nodeid, size: int = 2, at_s: float = 0, hardware: str = "", **more
) -> Sample:
    fields = {"backend": "gloo", "file": TEST.file, "suite": "tests", **more}
    return Sample(test=test, duration_s=seconds, size=size, at_s=at_s, hardware=hardware, **fields)


def test_the_85th_percentile_of_the_last_runs() -> None:
    old = [sample(1000, at_s=n) for n in range(10)]
    last = [sample(n + 1, at_s=100 + n) for n in range(WINDOW)]
    mixed = random.Random(1).sample([*old, *last], 30)

    assert 17 == Timings(mixed).expect(TEST)


def test_this_hardware_before_any_other() -> None:
    samples = [sample(9, hardware="slow"), sample(1, hardware="fast")]

    assert 1 == Timings(samples, hardware="fast").expect(TEST)
    assert 9 == Timings(samples, hardware="slow").expect(TEST)
    assert 9 == Timings(samples, hardware="unseen").expect(TEST)


def test_world_size_and_backend_are_part_of_the_key() -> None:
    samples = [sample(1), sample(5, size=4), sample(7, backend="nccl")]

    assert 1 == Timings(samples).expect(TEST)


def test_an_unknown_test_gets_the_median_of_its_file_then_of_the_suite_then_of_all() -> None:
    here = [sample(n, test=f"other{n}") for n in (1, 2, 9)]
    suite = [sample(n, test=f"far{n}", file="far.py") for n in (20, 30, 40, 50, 60)]
    elsewhere = [sample(n, test=f"else{n}", file="else.py", suite="else") for n in (500,)]

    timings = Timings([*here, *suite, *elsewhere])

    assert 2 == timings.expect(TEST)
    assert 25 == timings.expect(case("new", 2, file="new.py"))
    assert 30 == timings.expect(case("new", 2, file="new.py", suite="new"))
    assert UNKNOWN_S == Timings().expect(TEST)


def test_the_median_of_a_file_prefers_the_same_shape() -> None:
    samples = [sample(1, test="x"), sample(100, test="y", size=8), sample(100, test="z", size=8)]

    assert 1 == Timings(samples).expect(TEST)
    assert 100 == Timings(samples).expect(case("new", 16))


def test_failed_attempts_teach_no_time_but_who_failed_last() -> None:
    samples = [
        sample(300, bad=True, at_s=1),
        sample(2, at_s=0),
        sample(1, test="fixed", bad=True),
        sample(1, test="fixed", at_s=5),
    ]

    timings = Timings(samples)

    assert 2 == timings.expect(TEST)
    fixed = msgspec.structs.replace(TEST, nodeid="fixed", name="fixed")
    assert {TEST.nodeid} == timings.failed_among([TEST, fixed])


@pytest.mark.parametrize(("junit_at_s", "failed"), [(1, False), (3, True)])
def test_who_failed_last_is_known_by_the_names_of_junit_too(junit_at_s: float, failed: bool) -> None:
    junit = Sample(test="tests.test_a::test_a[2xgloo]", duration_s=4, at_s=junit_at_s, bad=True)

    timings = Timings([junit, sample(2, at_s=2)])

    assert timings.failed_among([TEST]) == ({TEST.nodeid} if failed else set())


def test_a_skip_teaches_only_the_same_test_on_the_same_hardware() -> None:
    """It took no time where it had no GPUs; that says nothing of its file, nor of itself where it runs."""
    skips = [sample(0, hardware="cpu", skipped=True), sample(0, test="x", skipped=True)]

    assert 0 == Timings(skips, hardware="cpu").expect(TEST)
    assert UNKNOWN_S == Timings(skips, hardware="H100").expect(TEST)
    assert 7 == Timings([*skips, sample(7, test="y")], hardware="H100").expect(TEST)
    assert UNKNOWN_S == Timings([Sample(test="a::b", duration_s=0, skipped=True)]).expect(TEST)


def test_junit_names_of_any_tool_are_found() -> None:
    junit = Sample(test="tests.test_a::test_a[2xgloo]", duration_s=4)

    assert 4 == Timings([junit]).expect(TEST)


def test_the_start_of_a_world_is_learned() -> None:
    shape = WorldShape(size=2, backend="gloo")
    starts = [WorldStart(shape=shape, duration_s=n) for n in (1, 2, 30)]

    assert 2 == Timings(starts=starts).start_s(shape)
    assert 0.3 == Timings().start_s(shape)
    assert 3.0 == Timings().start_s(WorldShape(size=2, backend="nccl", device="cuda"))


def test_hardware_is_its_gpu_models() -> None:
    assert "cpu" == hardware_key(Hardware(cpus=8))
    assert "H100" == hardware_key(Hardware(cpus=8, gpus=("H100", "H100")))
