"""What the sanitizers find in the planted programs (tests/planted): each its own finding, and nothing where nothing is wrong.

`make planted` has the traps look like deadlocks for a minute, `make test` for longer than a proof takes.
"""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
from lab import Ended, Lab
from planted import (
    GOOD,
    GOOD_FOR_ALL,
    HANGS,
    NO_RACES,
    ORDERS,
    RACES,
    TRAPS,
    VALUES,
    VALUES_GOOD,
    VALUES_RUNS,
    Program,
    copy_programs,
    divergences,
    programs_of,
    results_of,
    wrong,
    wrong_divergences,
)

from disttest.model import Outcome

NOT_PROVEN = {
    "test_a_thread_sets_the_key_with_the_client_that_waits_for_it": "a thread is in a store's set, which is no wait",
    "test_a_thread_reduces_what_the_other_rank_does_not": "the rank's main thread waits in a join of Python's",
}
"""Hangs that end at their time limit (``UNPROVEN``), and why."""
NOT_FOUND = {
    "test_one_rank_forgets_to_wait": "the handle is in a variable, which the path of the other rank reads",
}
"""Orders of which nothing is said, or something else, and why."""
OTHER_EACH_TIME = {
    "test_a_distributed_checkpoint_is_saved_and_loaded": "its metadata has the names of folders",
    "test_the_first_rank_takes_results_in_the_order_of_their_arrival": "so it says",
    "test_ranks_take_tasks_from_a_counter": "how many tasks a rank takes depends on how fast it is",
}
"""Right programs that may differ from run to run, and why."""


def run(folder: Path, modules: tuple[str, ...], *arguments: str, **environ: str) -> Ended:
    targets = copy_programs(folder, modules)
    return Lab(folder).run("run", *targets, "--slots", "16", *arguments, limit_s=1200, **environ)


@pytest.fixture(scope="module")
def watched(tmp_path_factory, nothing_left, request) -> Ended:
    """Hangs, and what looks like one; what hangs without a proof ends at a limit of its own."""
    straggle_s = 60 if request.config.getoption("--full") else 2
    return run(
        tmp_path_factory.mktemp("watched"),
        (*HANGS, *TRAPS),
        *("--timeout", "90", "--sanitize", "off"),
        PLANTED_STRAGGLE_S=str(straggle_s),
    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory, nothing_left) -> Ended:
    """Programs that pass, right or wrong."""
    return run(tmp_path_factory.mktemp("compared"), (*ORDERS, *GOOD), "--sanitize", "order")


@pytest.fixture(scope="module")
def raced(tmp_path_factory, nothing_left) -> Ended:
    """Programs that pass, with races and without."""
    return run(tmp_path_factory.mktemp("raced"), (*RACES, *NO_RACES, *GOOD), "--sanitize", "race")


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory, nothing_left) -> Ended:
    """Programs that pass with numbers that are right or wrong."""
    modules = (*VALUES, *VALUES_GOOD, *GOOD)
    return run(tmp_path_factory.mktemp("looked_at"), modules, "--sanitize", "values:warn")


@pytest.fixture(scope="module")
def judged_by_all(tmp_path_factory, nothing_left) -> Ended:
    """Programs that are right in every respect, with all tools on."""
    return run(tmp_path_factory.mktemp("judged_by_all"), GOOD_FOR_ALL, "--sanitize", "all")


def test_half_of_them_follow_reports_of_users():
    for modules in (HANGS, ORDERS, RACES, (*VALUES, *VALUES_RUNS)):
        programs = programs_of(modules).values()
        reports = collections.Counter(bool(program.report) for program in programs)
        assert reports[True] >= reports[False], modules


def test_hangs_are_proven(watched):
    unproven = wrong(watched.run, HANGS, Program.check_hang)
    assert NOT_PROVEN.keys() == unproven.keys(), unproven


def test_every_hang_fails(watched):
    results = results_of(watched.run)
    assert {Outcome.FAILED} == {results[name].outcome for name in programs_of(HANGS)}


def test_what_only_looks_like_a_deadlock_is_none(watched):
    assert {} == wrong(watched.run, TRAPS, Program.check_quiet)


def test_calls_that_do_not_fit_are_found_though_the_test_passes(compared):
    unfound = wrong(compared.run, ORDERS, Program.check_order)
    assert NOT_FOUND.keys() == unfound.keys(), unfound


def test_nothing_is_said_of_good_programs(compared):
    assert {} == wrong(compared.run, GOOD, Program.check_quiet)


def test_no_tool_finds_anything_in_programs_that_are_right(judged_by_all):
    assert {} == wrong(judged_by_all.run, GOOD_FOR_ALL, Program.check_quiet)


def test_races_are_found_though_the_test_passes(raced):
    assert {} == wrong(raced.run, RACES, Program.check_order)


def test_no_race_is_seen_where_there_is_none(raced):
    assert {} == wrong(raced.run, (*NO_RACES, *GOOD), Program.check_quiet)


def test_numbers_that_part_are_found_though_the_test_passes(looked_at):
    assert {} == wrong(looked_at.run, VALUES, Program.check_values)


def test_nothing_is_said_of_numbers_that_are_right(looked_at):
    assert {} == wrong(looked_at.run, (*VALUES_GOOD, *GOOD), Program.check_quiet)


@pytest.mark.slow("runs each program twice")
def test_the_first_difference_of_two_runs_is_found(tmp_path, nothing_left):
    for results, fault in (("right", ""), ("astray", "1")):
        run(tmp_path, VALUES_RUNS, "--sanitize", "values", "--results", results, PLANTED_FAULT=fault)
    assert {} == wrong_divergences(tmp_path / "right", tmp_path / "astray")


@pytest.mark.slow("runs each program twice")
def test_two_runs_of_right_programs_are_the_same(judged_by_all, tmp_path):
    again = run(tmp_path, GOOD_FOR_ALL, "--sanitize", "values")
    found = divergences(judged_by_all.results, again.results)
    assert {} == {name: why for name, why in found.items() if name not in OTHER_EACH_TIME}
