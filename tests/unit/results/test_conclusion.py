"""The end of a run: every fact, and which of two outweighs the other."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import case
from shard_runs import ShardRun

from disttest.errors import ExitCode
from disttest.extras.shards.merging import merge
from disttest.model import Cause, Outcome
from disttest.results.conclusion import (
    Demands,
    Facts,
    Process,
    conclude,
    facts_of,
    final_exit_code,
    join_exit_codes,
)
from disttest.results.events import CollectionFailed
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, read_events

FINISHED = Process(exit_code=0, ended="exit code 0")


def ended(code: int | None, *, reported: bool = True, text: str = "") -> Process:
    return Process(exit_code=code, ended=text or f"exit code {code}", has_reported=reported)


DIED = "the pytest process ended with SIGKILL in the middle of the run"

# Each outweighs all that follow it.
IN_ORDER = [
    ({"signal": 15}, 143, "the run was cancelled by SIGTERM"),
    ({"deadline": "the deadline of the run (9 s) passed"}, 124, "the deadline of the run (9 s) passed"),
    ({"process": ended(None, reported=False, text="SIGKILL")}, 3, DIED),
    ({"uncollected": True}, 2, ""),
    ({"failed": True}, 1, ""),
    ({"spoiled": True}, 7, ""),
    ({"flaky": True}, 1, ""),
    ({"uncalled": True}, 5, "no test ran"),
    ({"empty": True}, 5, ""),
    ({}, 0, ""),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "code", "reason"), IN_ORDER, ids=str)
def test_each_fact_alone(facts, code, reason):
    assert (code, reason) == conclude(Facts(**facts))


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(range(len(IN_ORDER)), 2)))
def test_the_graver_of_two_facts_counts(first, second):
    graver, lighter = IN_ORDER[first], IN_ORDER[second]

    assert graver[1:] == conclude(Facts(**(lighter[0] | graver[0])))


@pytest.mark.parametrize(
    ("process", "code", "reason"),
    [
        (ended(0), 0, "asked to stop"),
        (ended(1), 1, "asked to stop"),
        (ended(2), 2, "asked to stop"),
        (ended(5), 5, "asked to stop"),
        (ended(6), 6, "asked to stop"),
        (ended(7), 7, "asked to stop"),
        (ended(124), 124, "asked to stop"),
        (ended(77), 77, "asked to stop"),
        *(
            (msgspec.structs.replace(ended(code, reported=False), broken_off="cut"), 3, "cut")
            for code in (0, 4, 5, 7, 124)
        ),
        (ended(4, reported=False), 4, "pytest could not be started with these arguments"),
        (
            ended(7, reported=False),
            7,
            "pytest gave up with exit code 7: results could not be written, see above",
        ),
        (ended(0, reported=False), 3, "the pytest process ended with exit code 0 in the middle of the run"),
        (ended(5, reported=False), 5, "asked to stop"),
    ],
)
def test_how_pytest_ended(process, code, reason):
    assert (code, reason) == conclude(Facts(process=process, reason="asked to stop"))


def test_a_code_that_is_not_pytests_own_needs_a_reason():
    assert conclude(Facts(process=ended(77))) == (3, "the pytest process ended with exit code 77")


def test_a_process_that_says_green_is_checked():
    assert ExitCode.FAILED == conclude(Facts(process=FINISHED, failed=True)).exit_code


@pytest.mark.parametrize(
    ("code", "demands", "settled"),
    [
        (0, {}, 0),
        (5, {}, 5),
        (5, {"nothing_is_fine": True}, 0),
        (5, {"nothing_is_fine": True, "broken": ("few",)}, 1),
        (0, {"lost": ("junit.xml",)}, 3),
        (0, {"lost": ("junit.xml",), "broken": ("few",)}, 1),
        (0, {"broken": ("few",), "idle": ("ddp",)}, 6),
        (1, {"idle": ("ddp",), "lost": ("junit.xml",)}, 1),
    ],
)
def test_what_a_command_asks_beyond_it(code, demands, settled):
    assert settled == final_exit_code(code, Demands(**demands))


@pytest.mark.parametrize(
    ("codes", "joined"),
    [
        ((0, 1, 143), 1),
        ((1, 2), 2),
        ((7, 124), 124),
        ((143, 124), 143),
        ((7, 6), 6),
        ((77, 1), 1),
        ((9, 7), 9),
        ((), 0),
    ],
)
def test_the_gravest_of_the_shards_counts(codes, joined):
    assert joined == join_exit_codes(codes, something_ran=True)
    assert joined == join_exit_codes(reversed(codes), something_ran=True)


def test_nothing_to_run_is_fine_beside_something_that_ran():
    assert ExitCode.PASSED == join_exit_codes((5, 0), something_ran=True)
    assert ExitCode.NOTHING_COLLECTED == join_exit_codes((5, 0), something_ran=False)


RESULTS = st.sampled_from(
    [(Outcome.PASSED, None), (Outcome.FAILED, Cause.TEST), (Outcome.ERROR, Cause.INFRASTRUCTURE)]
)


@pytest.mark.slow("hypothesis draws many examples")
@given(
    results=st.lists(RESULTS, max_size=3),
    is_uncollected=st.booleans(),
    signal=st.sampled_from([0, 0, 15]),
    deadline=st.sampled_from(["", "", "passed"]),
)
def test_a_shard_that_is_merged_alone_comes_to_the_same(
    tmp_path_factory, results, is_uncollected, signal, deadline
):
    folder: Path = tmp_path_factory.mktemp("shard")
    shard = ShardRun(folder / "shard", 1)
    for number, (outcome, cause) in enumerate(results):
        shard.run(case(f"test_{number}"), outcome, cause=cause)
    if is_uncollected:
        shard.say(CollectionFailed, nodeid="tests/broken.py", message="SyntaxError")
    facts = facts_of(fold(read_events(folder / "shard" / FILE_NAME)))
    alone = conclude(Facts(
        signal=signal, deadline=deadline, uncollected=facts.uncollected, failed=facts.failed, spoiled=facts.spoiled,
        empty=facts.empty,
    ))  # fmt: skip
    shard.finish(alone.exit_code, alone.reason)
    (folder / "merged").mkdir()

    merged = merge([folder / "shard"], folder / "merged")

    assert alone.exit_code == merged.exit_code
    assert merged.reason == (f"shard 1: {alone.reason}" if alone.reason else "")
