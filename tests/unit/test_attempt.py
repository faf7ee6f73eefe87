"""What a rank has said counts, even if it had to be ended while it said more."""

import pytest

from disttest.host.process import Exit
from disttest.model import Outcome, RankEnd
from disttest.running import seats
from disttest.running.attempt import Progress
from disttest.running.protocol import PhaseEnded, TestDone


def ended(phase, outcome, at_s=1.0):
    return PhaseEnded(
        phase=phase, outcome=outcome, duration_s=0.1, ended_at_s=at_s, message=f"{phase} {outcome}"
    )


def progress(*reports, **more):
    return Progress(rank=0, pid=1, log="rank0.log", phase="teardown", reports=list(reports), **more)


SETUP = ended("setup", Outcome.PASSED)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.XFAILED])
def test_a_failure_stands_when_the_tear_down_was_cut(outcome):
    record = progress(SETUP, ended("call", outcome), killed=True).record(0.0)

    assert (RankEnd.KILLED, outcome, "call") == (record.end, record.outcome, record.phase)


def test_a_pass_does_not_stand_when_the_tear_down_was_cut():
    record = progress(SETUP, ended("call", Outcome.PASSED), killed=True, hung=True).record(0.0)

    assert (None, "teardown", "was ended by disttest") == (record.outcome, record.phase, record.message)


def test_the_first_bad_report_speaks():
    reports = [SETUP, ended("call", Outcome.FAILED, 2.0), ended("teardown", Outcome.ERROR, 3.0)]
    record = progress(*reports, done=TestDone()).record(0.5)

    assert ("call failed", 1.5) == (record.message, record.failed_after_s)


@pytest.mark.parametrize(
    ("death", "message"),
    [
        (Exit(signal=11), "was killed by SIGSEGV in teardown, before it reported"),
        (Exit(code=0), "left with exit code 0 in teardown, before it reported"),
    ],
)
def test_a_death_outweighs_what_was_said_before(death, message):
    record = progress(SETUP, ended("call", Outcome.PASSED), death=death, died_at_s=2.0).record(1.0)

    assert (message, None, 1.0) == (record.message, record.outcome, record.failed_after_s)


def test_a_last_word_follows_the_signal():
    record = progress(death=Exit(signal=9), died_at_s=2.0, last_words="memory ran out").record(1.0)

    assert "was killed by SIGKILL in teardown, before it reported: memory ran out" == record.message


def test_a_flood_of_subtests_keeps_outcomes_and_messages_but_not_all_texts():
    rank = progress()
    for number in range(100):
        rank.take_report(
            PhaseEnded(
                phase="call",
                outcome=Outcome.FAILED,
                duration_s=0.1,
                ended_at_s=1.0,
                message=f"subtest {number}",
                details="x" * 200_000,
                report="y" * 200_000,
                partial=True,
            )
        )
    rank.take_report(ended("call", Outcome.PASSED))

    assert 101 == len(rank.reports)
    assert "subtest 99" == rank.reports[99].message
    assert sum(len(report.details) + len(report.report) for report in rank.reports) <= 8 * 1024 * 1024
    assert "subtest 0" == rank.record(0.0).message


@pytest.mark.parametrize(("told", "taken"), [(0.0, 100.0), (100.5, 100.5), (4e9, 101.0)])
def test_the_clock_of_a_rank_is_not_trusted(monkeypatch, told, taken):
    monkeypatch.setattr(seats.time, "monotonic", lambda: 101.0)

    assert taken == seats._within(ended("call", Outcome.FAILED, told), 100.0).ended_at_s
