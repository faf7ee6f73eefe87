"""The layout of a run on its slots."""

from __future__ import annotations

import pytest
from sample_runs import EPOCH_S, SampleRun, mixed_run

from disttest.model import Outcome
from disttest.plugins.costs.timeline import build_timeline, render_lanes


def test_two_worlds_side_by_side_and_an_ordinary_test():
    sample = SampleRun(slots=4)
    sample.test(name="test_a", seconds=2.0, slots=("gpu:0", "gpu:1"), at_s=EPOCH_S)
    sample.test(Outcome.FAILED, name="test_b", seconds=1.0, slots=("gpu:2", "gpu:10"), at_s=EPOCH_S)
    sample.test(name="test_c", size=None, seconds=0.5, at_s=EPOCH_S + 2)
    timeline = build_timeline(sample.finish())

    assert timeline.slots == ("gpu:0", "gpu:1", "gpu:2", "gpu:10", "controller")
    assert [(bar.lanes, bar.start_s, bar.end_s, bar.kind) for bar in timeline.bars] == [
        ((0, 1), 0.0, 2.0, "passed"),
        ((2, 3), 0.0, 1.0, "failed"),
        ((4,), 2.0, 2.5, "passed"),
    ]
    assert timeline.makespan_s == 2.5
    assert timeline.lower_bound_s == 2.0
    assert timeline.busy_s == (2.0, 2.0, 1.0, 1.0, 0.5)


def test_work_that_fills_all_slots_bounds_the_time():
    sample = SampleRun(slots=2)
    for number in range(10):
        sample.test(name=f"test_{number}", seconds=1.0, size=2)

    assert build_timeline(sample.finish()).lower_bound_s == 10.0


def test_gpus_and_the_cpu_beside_them_are_bounds_of_their_own():
    sample = SampleRun(slots=2, cpu_slots=1)
    for number in range(4):
        gpu = f"gpu:{number % 2}"
        sample.test(name=f"test_g{number}", seconds=1.0, size=1, slots=(gpu,), at_s=EPOCH_S + number // 2)
        sample.test(name=f"test_c{number}", seconds=1.0, size=1, slots=("cpu:0",), at_s=EPOCH_S + number)

    assert build_timeline(sample.finish()).lower_bound_s == 4.0  # all eight over three slots would be less


def test_the_failed_attempt_of_a_flaky_test_is_shown_as_failed():
    sample = SampleRun()
    sample.test(attempts=[{"outcome": Outcome.FAILED}])

    assert [bar.kind for bar in build_timeline(sample.finish()).bars] == ["failed", "flaky"]


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_tests_of_no_time_are_not_on_it(seconds):
    sample = SampleRun()
    sample.test(seconds=seconds)
    timeline = build_timeline(sample.finish())

    assert timeline.bars == ()
    assert timeline.makespan_s == 0.0
    assert render_lanes(timeline, width=10)


def test_in_text():
    sample = SampleRun(slots=2)
    sample.test(name="test_a", seconds=1.0, size=1, slots=("cpu:0",), at_s=EPOCH_S)
    sample.test(Outcome.FAILED, name="test_b", seconds=1.0, size=2, at_s=EPOCH_S + 1)

    assert render_lanes(build_timeline(sample.finish()), width=10).splitlines()[:3] == [
        "cpu:0 █████××××× 100 %",
        "cpu:1 ·····×××××  50 %",
        "      0 s  2.0 s",
    ]


def test_an_empty_run_and_a_large_one():
    assert build_timeline(SampleRun().finish()).slots == ()
    assert build_timeline(mixed_run()).slots[-1] == "controller"
