"""What exit codes mean: the field's table, the test's own rule, and torch's reading of the same ranks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from disttest.model import Outcome, RankEnd, RankRecord
from disttest.results.exit_codes import (
    SKIP_MESSAGES,
    TEST_ERROR,
    TEST_SKIPS,
    ExitRule,
    kept_outcome,
    read_record,
    torch_outcome,
)


def rank(
    number: int = 0,
    *,
    code: int | None = None,
    signal: int | None = None,
    end: RankEnd = RankEnd.REPORTED,
    outcome: Outcome | None = None,
    message: str = "",
    hung: bool = False,
) -> RankRecord:
    return RankRecord(
        rank=number, end=end, exit_code=code, signal=signal, outcome=outcome, message=message, hung=hung
    )


def read(record: RankRecord, rule: ExitRule | None = None) -> tuple[Outcome | None, str]:
    found = read_record(record, rule or ExitRule(), SKIP_MESSAGES)
    return found.outcome, found.message


@pytest.mark.covers("HN-020", "HN-021", "HN-022", "HN-023", "HN-025", "HN-026", "HN-027", "HN-028", "HN-029")
@pytest.mark.covers("HN-030", "HN-031", "HN-032", "HN-033", "HN-034", "HN-036", "HN-037", "HN-195")
def test_every_code_of_the_table_is_a_skip_with_its_message() -> None:
    assert len(TEST_SKIPS) == 18
    for skip in TEST_SKIPS.values():
        assert read(rank(code=skip.exit_code)) == (Outcome.SKIPPED, skip.message)


@pytest.mark.covers("HN-039")
def test_codes_are_used_once() -> None:
    codes = [skip.exit_code for skip in TEST_SKIPS.values()]
    assert len(set(codes)) == len(codes)
    assert set(codes) <= set(range(72, 90))
    assert not {0, TEST_ERROR} & set(codes)


def test_the_reason_of_a_raised_skip_is_kept() -> None:
    assert read(rank(code=86, outcome=Outcome.SKIPPED, message="not today")) == (Outcome.SKIPPED, "not today")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (rank(code=0), Outcome.PASSED),
        (rank(code=3), Outcome.FAILED),
        (rank(code=TEST_ERROR), Outcome.FAILED),
        (rank(code=0, end=RankEnd.EXITED), None),
        (rank(code=86, end=RankEnd.EXITED), None),
        (rank(signal=11, end=RankEnd.SIGNALLED), None),
        (rank(end=RankEnd.KILLED), None),
    ],
)
def test_only_a_rank_that_said_so_has_passed(record, expected) -> None:
    assert read(record)[0] is expected


@pytest.mark.covers("HN-106")
@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (rank(0, signal=6, end=RankEnd.SIGNALLED), Outcome.PASSED),
        (rank(1, signal=6, end=RankEnd.SIGNALLED), Outcome.PASSED),
        (rank(1, code=0), Outcome.PASSED),
        (rank(0, code=0), Outcome.FAILED),
        (rank(0, signal=11, end=RankEnd.SIGNALLED), None),
        (rank(1, code=0, end=RankEnd.EXITED), None),
    ],
)
def test_an_expected_code(record, expected) -> None:
    assert read(record, ExitRule(expected=-6))[0] is expected


@pytest.mark.covers("HN-104")
def test_any_code_but_an_error() -> None:
    rule = ExitRule(any_code=True)
    assert read(rank(code=17, end=RankEnd.EXITED), rule)[0] is Outcome.PASSED
    assert read(rank(code=0, end=RankEnd.EXITED), rule)[0] is Outcome.PASSED
    assert read(rank(code=TEST_ERROR), rule)[0] is Outcome.FAILED


def test_a_failure_stays_one_whatever_the_code() -> None:
    outcome, message = read(rank(code=86, outcome=Outcome.FAILED, message="boom"))
    assert outcome is Outcome.FAILED
    assert message == "boom (it then left with 86, a code for skips, which does not undo the failure)"


@pytest.mark.covers("HN-095", "HN-100", "HN-101", "HN-102", "HN-103", "HN-105")
@pytest.mark.parametrize(
    ("ranks", "rule", "expected"),
    [
        ([], ExitRule(), Outcome.PASSED),
        ([rank(0, code=0), rank(1, signal=11, end=RankEnd.SIGNALLED)], ExitRule(), Outcome.PASSED),
        ([rank(0, code=0), rank(1, code=3)], ExitRule(), Outcome.PASSED),
        ([rank(0, code=0), rank(1, code=74)], ExitRule(), Outcome.PASSED),
        ([rank(0, code=3), rank(1, code=0)], ExitRule(), Outcome.FAILED),
        ([rank(0, code=74), rank(1, code=0)], ExitRule(), Outcome.SKIPPED),
        ([rank(0, code=0), rank(1, code=TEST_ERROR)], ExitRule(), Outcome.FAILED),
        ([rank(0, end=RankEnd.KILLED), rank(1, code=TEST_ERROR)], ExitRule(), Outcome.FAILED),
        ([rank(0, end=RankEnd.KILLED, hung=True), rank(1, code=0)], ExitRule(), Outcome.FAILED),
        ([rank(0, end=RankEnd.KILLED), rank(1, code=5)], ExitRule(), None),
        ([rank(0, signal=6, end=RankEnd.SIGNALLED), rank(1, code=0)], ExitRule(expected=-6), Outcome.PASSED),
        ([rank(0, code=9), rank(1, code=0)], ExitRule(any_code=True), Outcome.PASSED),
    ],
)
def test_torchs_reading(ranks, rule, expected) -> None:
    assert torch_outcome(ranks, rule, SKIP_MESSAGES) is expected


def kept(*outcomes: Outcome | None, **last: Any) -> list[RankRecord]:
    *first, end = (rank(number, outcome=outcome) for number, outcome in enumerate(outcomes))
    return [*first, msgspec.structs.replace(end, **last)]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (kept(Outcome.PASSED, Outcome.PASSED), Outcome.PASSED),
        (kept(Outcome.PASSED, Outcome.SKIPPED), Outcome.SKIPPED),
        (kept(Outcome.SKIPPED, Outcome.FAILED), Outcome.SKIPPED),
        (kept(Outcome.FAILED, Outcome.SKIPPED), Outcome.FAILED),
        (kept(Outcome.PASSED, Outcome.SKIPPED, Outcome.FAILED), Outcome.SKIPPED),
        (kept(Outcome.PASSED, None, end=RankEnd.EXITED, exit_code=0), Outcome.FAILED),
        (kept(Outcome.PASSED, None, end=RankEnd.KILLED, hung=True), Outcome.FAILED),
        (kept(Outcome.PASSED, None, end=RankEnd.KILLED), None),
        (kept(Outcome.FAILED, None, end=RankEnd.KILLED), Outcome.FAILED),
    ],
)
def test_torchs_reading_of_kept_ranks(ranks, expected) -> None:
    assert kept_outcome(ranks) is expected
