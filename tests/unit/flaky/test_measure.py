"""The measurement of a flaky test: the rule that names the cause, and the schedule, on simulated tests."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import case

from disttest.errors import UsageError
from disttest.extras.flaky.causes import (
    Cause,
    Pairs,
    Tally,
    chance_of_agreement,
    chance_of_more,
    classify,
)
from disttest.extras.flaky.hooks import disttest_place_tests
from disttest.extras.flaky.measure import Enough, Measurement, Outcomes, Trial, seed_of
from disttest.extras.flaky.measure_run import table_of
from disttest.extras.flaky.perturb import Perturbed, parse_perturbed
from disttest.extras.flaky.perturbations import AFTER, perturbations
from disttest.model import WorldKind
from disttest.options.run import resolve_options

TABLE = perturbations(4, 2, on_cpu=True)
NAMES = [row.name for row in TABLE]
TALLIES = st.builds(Tally, failed=st.integers(0, 40), passed=st.integers(0, 40), spoiled=st.just(0))
PAIRS = st.builds(
    Pairs,
    both=st.integers(0, 20),
    first=st.integers(0, 20),
    second=st.integers(0, 20),
    neither=st.integers(0, 20),
)
PERTURBED = st.dictionaries(st.sampled_from(NAMES), TALLIES)


@given(more=TALLIES, less=TALLIES)
def test_a_chance_is_a_probability_and_falls_with_each_further_failure(more, less):
    chance = chance_of_more(more, less)

    assert 0 <= chance <= 1 + 1e-9
    if more.passed:
        assert chance_of_more(Tally(failed=more.failed + 1, passed=more.passed - 1), less) <= chance + 1e-9


def test_the_chance_is_that_of_fishers_exact_test():
    # The tea of the lady: three of four cups, https://en.wikipedia.org/wiki/Fisher%27s_exact_test
    assert chance_of_more(Tally(failed=3, passed=1), Tally(failed=1, passed=3)) == pytest.approx(17 / 70)
    assert chance_of_agreement(Pairs(both=3, neither=17)) == pytest.approx(1 / 1140)


@given(plain=TALLIES, pairs=PAIRS, perturbed=PERTURBED)
def test_only_a_test_that_never_passed_is_deterministic(plain, pairs, perturbed):
    every = [plain, *perturbed.values()]
    passed, failed = any(each.passed for each in every), any(each.failed for each in every)
    cause = classify(plain, pairs, perturbed, TABLE).cause

    assert (cause is Cause.NEVER_FAILED) == (not failed and plain.passed > 0)
    assert (cause is Cause.DETERMINISTIC) == (failed and not passed)


@given(plain=TALLIES, perturbed=PERTURBED)
def test_a_perturbation_with_the_rate_of_plain_runs_is_no_cause(plain, perturbed):
    same = dict.fromkeys(perturbed, plain)

    assert classify(plain, Pairs(), same, TABLE).cause in (
        Cause.UNKNOWN,
        Cause.NEVER_FAILED,
        Cause.DETERMINISTIC,
    )


@pytest.mark.parametrize(
    ("perturbed", "cause", "by"),
    [
        ({"delay": Tally(failed=20)}, Cause.TIMING, "delay"),
        ({"cpu": Tally(failed=20), "crowd": Tally(failed=20)}, Cause.TIMING, "cpu"),
        ({"cpu": Tally(passed=20), "crowd": Tally(failed=20)}, Cause.MACHINE, "crowd"),
        ({"memory": Tally(failed=20)}, Cause.RESOURCES, "memory"),
        ({"threads": Tally(failed=12, passed=8)}, Cause.RESOURCES, "threads"),
        ({"after others": Tally(failed=3)}, Cause.ORDER, "after others"),
        ({"after itself": Tally(failed=10, passed=10)}, Cause.ORDER, "after itself"),
        ({"cpu": Tally(failed=3, passed=17)}, Cause.UNKNOWN, ""),
        ({"cpu": Tally(spoiled=20)}, Cause.MACHINE, "spoiled runs"),
    ],
)
def test_the_cause_of_a_test_that_fails_only_under_a_perturbation(perturbed, cause, by):
    verdict = classify(Tally(passed=40), Pairs(neither=20), perturbed, TABLE)

    assert (verdict.cause, verdict.by) == (cause, by)


def test_other_tests_that_prepare_a_test_are_a_matter_of_order():
    verdict = classify(Tally(failed=40), Pairs(both=20), {"after others": Tally(passed=3)}, TABLE)

    assert verdict.cause is Cause.ORDER


def test_a_lower_rate_of_single_worlds_shows_the_machine():
    verdict = classify(Tally(failed=20, passed=20), Pairs(), {"alone": Tally(passed=20)}, TABLE)

    assert (verdict.cause, verdict.by) == (Cause.MACHINE, "alone")


# --- the schedule


class Simulated:
    """A test that fails as a function says, and a clock that allows so many trials."""

    def __init__(self, fails: Callable[[Trial, int], bool], trials: int = 60) -> None:
        self.fails, self.left, self.tried = fails, trials, []
        self.said: list[tuple[str, Tally]] = []

    def attempt(self, trial: Trial) -> Outcomes:
        if not self.left:
            raise Enough
        self.left -= 1
        self.tried.append(trial)
        return Outcomes(failed={n: self.fails(trial, n) for n in range(1, trial.times + 1)})

    def measure(
        self, *, others: tuple[str, ...] = ("a", "b", "c", "d"), until_fail: bool = False
    ) -> Measurement:
        measurement = Measurement(
            "t.py::test_x",
            others,
            TABLE,
            self.attempt,
            lambda name, tally: self.said.append((name, tally)),
            times=20,
            seed=0,
            until_fail=until_fail,
        )
        measurement.measure()
        return measurement


def perturbed_by(trial: Trial) -> Perturbed:
    words = trial.words
    return parse_perturbed(words[words.index("--perturb") + 1]) if "--perturb" in words else Perturbed()


def test_a_deterministic_failure():
    found = Simulated(lambda _trial, _number: True).measure()

    assert found.verdict.cause is Cause.DETERMINISTIC
    assert found.verdict.confidence > 0.9
    assert found.smallest is not None


def test_a_test_that_never_fails_is_run_more_often_until_the_time_is_over():
    simulated = Simulated(lambda _trial, _number: False, trials=30)
    found = simulated.measure()

    assert (found.verdict.cause, found.smallest, simulated.left) == (Cause.NEVER_FAILED, None, 0)
    assert {trial.times for trial in simulated.tried} >= {20, 40, 80}


def test_a_seed_is_found_and_repeated_alone():
    def fails(trial: Trial, number: int) -> bool:
        return random.Random(seed_of("t.py::test_x", number, trial.seed)).random() < 0.3

    found = Simulated(fails).measure()

    assert found.verdict.cause is Cause.SEED
    assert found.smallest is not None
    assert fails(found.smallest, 1)


def test_a_failure_by_chance_alone_has_no_known_cause():
    draw = random.Random(3)
    found = Simulated(lambda _trial, _number: draw.random() < 0.3, trials=40).measure()

    assert found.verdict.cause is Cause.UNKNOWN


@pytest.mark.parametrize("polluter", ["a", "b", "c", "d"])
def test_the_other_test_that_breaks_a_test_is_found(polluter):
    found = Simulated(lambda trial, _number: polluter in trial.before).measure()

    assert found.verdict.cause is Cause.ORDER
    assert found.smallest == Trial(words=AFTER.strengths[0], before=(polluter,))


def test_other_tests_that_fail_are_left_out_since_they_end_the_processes():
    class Ending(Simulated):
        def attempt(self, trial: Trial) -> Outcomes:
            outcomes = super().attempt(trial)
            return Outcomes(failed=outcomes.failed, broken=tuple({"c"} & {*trial.before}))

    found = Ending(lambda trial, _number: "a" in trial.before and "c" not in trial.before).measure()

    assert found.verdict.cause is Cause.ORDER
    assert found.smallest is not None
    assert found.smallest.before == ("a",)


def test_two_tests_that_break_a_test_together_are_kept():
    found = Simulated(lambda trial, _number: {"a", "d"} <= {*trial.before}).measure()

    assert found.smallest is not None
    assert found.smallest.before == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("processors", "size", "on_cpu", "has"),
    [(2, 2, True, True), (2, 4, True, True), (2, 2, False, False), (4, 2, False, True)],
)
def test_one_world_at_a_time_differs_wherever_a_run_may_have_several(processors, size, on_cpu, has):
    """A run on the CPU borrows slots while worlds sleep, whatever the number of processors."""
    assert has is ("alone" in {row.name for row in perturbations(processors, size, on_cpu=on_cpu)})


@pytest.mark.parametrize(
    ("test", "device", "on_cpu"),
    [
        (case("a", None), "cpu", True),
        (case("a", None), "cuda", False),
        (case("a", 2), "cuda", True),
        (case("a", 2, device="cuda"), "cuda", False),
    ],
    ids=["ordinary", "ordinary, in a run on GPUs", "a world on the CPU there", "a world on GPUs"],
)
def test_a_test_that_may_use_a_gpu_is_neither_crowded_nor_short_of_memory(test, device, on_cpu):
    """Its copies would exhaust the GPU, and a CUDA context needs more address space than any limit."""
    assert on_cpu is ({"crowd", "memory"} <= {row.name for row in table_of(test, device)})


@pytest.mark.parametrize(("needed", "smallest"), [(8, "cpu:8"), (3, "cpu:4"), (1, "cpu:1")])
def test_the_weakest_strength_that_reproduces_the_failure_is_found(needed, smallest):
    found = Simulated(lambda trial, _number: perturbed_by(trial).cpu >= needed).measure()

    assert found.verdict.cause is Cause.TIMING
    assert found.smallest is not None
    assert smallest in found.smallest.words


def test_until_fail_stops_at_the_first_failure():
    simulated = Simulated(lambda trial, number: perturbed_by(trial).delay > 0 and number == 2)
    found = simulated.measure(until_fail=True)

    assert found.has_failed
    assert "--perturb" in simulated.tried[-1].words
    assert found.smallest == simulated.tried[-1]


def test_no_trial_after_others_without_others():
    simulated = Simulated(lambda _trial, _number: False, trials=8)
    simulated.measure(others=())

    assert not any(trial.before for trial in simulated.tried)
    assert AFTER.name not in {name for name, _ in simulated.said}


class Timed(Simulated):
    """A test whose repetitions take a second each; a run ends with the part of the time that it may take."""

    def attempt(self, trial: Trial) -> Outcomes:
        if not self.left:
            raise Enough
        times = min(trial.times, math.ceil(self.left * trial.share))
        self.left = max(0, self.left - times)
        self.tried.append(trial)
        return Outcomes(failed={n: self.fails(trial, n) for n in range(1, times + 1)})


@pytest.mark.parametrize("seconds", [40, 60])
def test_slow_runs_without_a_failure_leave_half_of_the_time_to_perturbations(seconds):
    found = Timed(lambda _trial, _number: False, trials=seconds).measure()

    assert found.plain.ran <= seconds / 2 + 2
    assert AFTER.name in found.perturbed
    assert () == found.untried


def test_what_had_no_time_is_named_as_untried():
    found = Timed(lambda _trial, _number: False, trials=5).measure()

    assert found.untried
    assert not {*found.untried} & {*found.perturbed}


def test_a_slow_perturbation_leaves_time_for_those_after_it():
    class Slow(Timed):
        def attempt(self, trial: Trial) -> Outcomes:
            if "cpu:8" not in trial.words:
                return super().attempt(trial)
            self.left -= math.ceil(self.left * trial.share)
            return Outcomes()

    found = Slow(lambda _trial, _number: False, trials=120).measure()

    assert ("cpu",) == found.untried


def test_the_other_tests_that_break_one_are_found_although_its_runs_are_slow():
    found = Timed(lambda trial, _number: bool(trial.before), trials=60).measure()

    assert found.verdict.cause is Cause.ORDER
    assert found.untried == ()


class Started(Timed):
    """A test whose runs need seven seconds to start."""

    def attempt(self, trial: Trial) -> Outcomes:
        share = self.left * trial.share - 7
        if share > 0:
            self.left -= 7
            return super().attempt(msgspec.structs.replace(trial, share=min(1.0, share / max(1, self.left))))
        if not self.left:
            raise Enough
        self.left = max(0, self.left - math.ceil(self.left * trial.share))
        return Outcomes()


def test_one_plain_run_gets_all_the_time_if_its_part_does_not_suffice():
    found = Started(lambda _trial, _number: False, trials=24).measure()

    assert found.plain == Tally(passed=1)
    assert found.verdict.cause is Cause.NEVER_FAILED
    assert "plain" not in found.untried


def test_the_time_is_not_used_up_by_a_test_that_is_skipped():
    class Skipped(Simulated):
        def attempt(self, trial: Trial) -> Outcomes:
            super().attempt(trial)
            return Outcomes()

    skipped = Skipped(lambda _trial, _number: False)
    found = skipped.measure()

    assert (found.verdict.cause, len(skipped.tried)) == (Cause.UNKNOWN, 2)


def test_without_a_plain_run_nothing_is_known():
    found = Started(lambda _trial, _number: False, trials=6).measure()

    assert found.verdict.cause is Cause.UNKNOWN
    assert found.untried[0] == "plain"


def test_nothing_is_named_as_untried_after_the_failure_that_was_asked_for():
    assert Simulated(lambda _trial, _number: True).measure(until_fail=True).untried == ()


@settings(max_examples=15)
@given(fails=st.randoms(use_true_random=False), trials=st.integers(0, 20))
def test_whatever_fails_the_measurement_ends_with_its_time(fails, trials):
    rate = fails.random()
    simulated = Simulated(lambda _trial, _number: fails.random() < rate, trials=trials)
    found = simulated.measure()

    assert found.has_failed == (found.smallest is not None)
    assert len(simulated.tried) <= trials


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("delay:0.2", Perturbed(delay=0.2)),
        ("cpu:4,threads:1", Perturbed(cpu=4, threads=1)),
        ("crowd", Perturbed(crowd=True)),
        ("memory:2g", Perturbed(memory=2 << 30)),
    ],
)
def test_perturbations_are_parsed(text, value):
    assert parse_perturbed(text) == value


@pytest.mark.parametrize("text", ["", "cpu", "crowd:3", "cpu:0", "delay:soon", "heat:3", "memory:much"])
def test_a_perturbation_that_is_not_valid_is_refused(text):
    with pytest.raises(UsageError):
        parse_perturbed(text)


@pytest.mark.parametrize(
    ("kind", "asked", "debugged", "alone"),
    [
        (WorldKind.PROCESS, [], False, False),
        (WorldKind.PROCESS, ["exclusive"], False, True),
        (WorldKind.PROCESS, [], True, True),
        (WorldKind.RANKS, ["exclusive"], False, True),
    ],
)
def test_a_crowd_runs_isolated_tests_together_unless_the_user_wants_them_alone(kind, asked, debugged, alone):
    marks = dict.fromkeys(asked, pytest.mark.exclusive.mark)
    item: Any = SimpleNamespace(get_closest_marker=marks.get)
    test = msgspec.structs.replace(case("a", None), kind=kind, exclusive=True)
    options = msgspec.structs.replace(resolve_options({"perturb": "crowd"}, environ={}), is_debugged=debugged)
    pairs = [(item, test)]

    disttest_place_tests(pairs=pairs, options=options)

    assert [alone] == [each.exclusive for _, each in pairs]
