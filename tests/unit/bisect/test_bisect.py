"""The rule of the bisection in simulations, and its search with tests that are functions."""

from __future__ import annotations

import math
import random
import subprocess
from types import SimpleNamespace

import pytest

from disttest.errors import UsageError
from disttest.extras.bisect.command import describe
from disttest.extras.bisect.search import (
    FIRST_RUNS,
    MOST_AT_ONCE,
    Answer,
    Bisection,
    Tried,
    measure_rate,
    search,
)
from disttest.extras.bisect.work_tree import git

CONFIDENCE = 0.97


def fewest_runs(commits: int, rate: float) -> float:
    """The runs that no rule can beat on average: the information that is needed, by the most that one run can give."""
    if rate >= 1:
        return math.log2(commits)
    # One answer is always right (a failure) and the other may be wrong (a pass). That is a Z-channel, whose
    # capacity this is: https://en.wikipedia.org/wiki/Z-channel_(information_theory)
    hidden = 1 - rate
    capacity = math.log2(1 + rate * hidden ** (hidden / rate))
    return math.log2(commits) / capacity


class Planted:
    """A test that fails with a rate from one commit on."""

    def __init__(self, first_bad: int, rate: float, seed: int, *, untestable: tuple[int, ...] = ()) -> None:
        self.first_bad, self.rate, self.untestable = first_bad, rate, untestable
        self.chance = random.Random(seed)
        self.runs = 0

    def __call__(self, commit: int, times: int, until_failure: bool) -> Tried:
        if commit in self.untestable:
            return Tried(why_not="it cannot be collected")
        assert 1 <= times <= MOST_AT_ONCE
        failed = passed = 0
        while failed + passed < times and not (failed and until_failure):
            self.runs += 1
            if commit >= self.first_bad and self.chance.random() < self.rate:
                failed += 1
            else:
                passed += 1
        return Tried(passed=passed, failed=failed)


def found(planted: Planted, commits: int, *, rate: float | None = None, most: int = 20_000) -> Answer:
    return search(commits, planted, lambda _: None, rate=rate, confidence=CONFIDENCE, most=most)


@pytest.mark.slow("many simulated searches")
@pytest.mark.parametrize("known", [True, False])
def test_a_rate_of_a_tenth_over_64_commits(known):
    """The aim: right in 95 of 100 searches, with at most 3 times the fewest runs; the measurement of the rate included."""
    right = runs = 0
    for seed in range(100):
        planted = Planted(1 + seed * 64 // 100, 0.1, seed)
        answer = found(planted, 65, rate=0.1 if known else None)
        right += answer.commits == (planted.first_bad,)
        assert answer.runs == planted.runs
        runs += planted.runs

    assert right >= 95
    assert runs / 100 <= 3 * fewest_runs(65, 0.1)


def test_a_test_that_always_fails_needs_a_run_for_each_halving():
    for first_bad in range(1, 65):
        planted = Planted(first_bad, 1.0, 0)
        answer = found(planted, 65, rate=1.0)
        assert answer.commits == (first_bad,)
        assert planted.runs <= 9


def test_two_commits_need_as_many_passes_as_the_rate_demands():
    planted = Planted(1, 0.1, 0)
    answer = found(planted, 2, rate=0.1)

    assert answer.commits == (1,)
    assert planted.runs == 33  # 1 / (1 + 0.9 ** 33) is the first probability of 0.97


def test_a_good_commit_that_is_bad_is_found_out():
    assert found(Planted(0, 0.3, 1), 20, rate=0.3).commits == (0,)


def test_commits_that_cannot_be_tested_leave_a_range():
    answer = found(Planted(5, 1.0, 0, untestable=(4, 5)), 9, rate=1.0)

    assert not answer.is_decided
    assert answer.commits == (4, 5, 6)


def test_an_end_of_the_runs_is_no_answer():
    answer = found(Planted(5, 0.1, 0), 65, rate=0.1, most=40)

    assert not answer.is_decided
    assert answer.runs == 40
    assert 5 in answer.commits


class TestMeasuring:
    def test_the_rate_is_careful(self):
        rate, runs = measure_rate(1, Planted(0, 0.2, 3), lambda _: None, 2000)

        assert 0.05 < rate < 0.2
        assert runs == FIRST_RUNS + 4 * FIRST_RUNS

    def test_one_that_fails_each_time_is_certain(self):
        assert measure_rate(1, Planted(0, 1.0, 0), lambda _: None, 2000) == (1.0, FIRST_RUNS)

    @pytest.mark.parametrize(
        ("planted", "message"),
        [
            (Planted(9, 1.0, 0), "the test passed in all of 500 runs at BAD"),
            (Planted(0, 1.0, 0, untestable=(1,)), "the test cannot run at BAD: it cannot be collected"),
        ],
    )
    def test_refusals(self, planted, message):
        with pytest.raises(UsageError, match=message):
            measure_rate(1, planted, lambda _: None, 500)


@pytest.mark.parametrize(("commits", "rate"), [(1, 0.5), (5, 0.0), (5, 1.5)])
def test_what_cannot_be_bisected(commits, rate):
    with pytest.raises(ValueError, match="cannot bisect"):
        Bisection(commits, rate, confidence=0.9)


def test_the_fewest_runs():
    assert fewest_runs(64, 1.0) == 6
    # The capacity of a Z channel that passes a tenth: 0.0548 bits.
    assert fewest_runs(64, 0.1) == pytest.approx(6 / 0.0548, rel=1e-2)


def test_the_answer_in_words():
    decided = Answer(commits=(3,), probability=0.981, runs=120, is_decided=True)
    assert describe(decided, ["abc fix"]) == ["first bad commit: abc fix (98 % sure, 120 runs)"]
    bad = Answer(commits=(0,), probability=0.99, runs=9, is_decided=True)
    assert describe(bad, ["abc fix"]) == ["GOOD is bad already: abc fix (99 % sure, 9 runs)"]
    open_ = Answer(commits=(3, 4, 5), probability=0.4, runs=9, is_decided=False)
    assert describe(open_, ["a", "b"]) == [
        "not decided after 9 runs; the first bad commit is one of 3 commits:",
        "  a",
        "  b",
        "  … and 1 more",
    ]


def test_the_reason_of_git_is_its_first_line(tmp_path, monkeypatch):
    text = "fatal: ambiguous argument 'none': unknown revision\nUse '--' to separate paths from revisions\n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=128, stderr=text))

    with pytest.raises(UsageError, match="git rev-list failed: fatal: ambiguous argument 'none'"):
        git(tmp_path, "rev-list", "none")
