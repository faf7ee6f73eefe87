"""What a rank has said counts, even if it had to be ended while it said more."""

from types import SimpleNamespace

import msgspec
import pytest

from disttest.host.process import Exit
from disttest.limits import CONSEQUENCE_WAIT_S, OWN_TEAR_DOWN_S, RENDERING_LEAST_S
from disttest.model import Outcome, RankEnd, TestCase
from disttest.results.rulings import RankState, state_of
from disttest.runtime.messages.protocol import PhaseEnded, TestDone
from disttest.runtime.world import attempt as attempt_module
from disttest.runtime.world import rank_handles
from disttest.runtime.world.attempt import Attempt, RankProgress


def ended(phase, outcome, at_s=1.0):
    return PhaseEnded(
        phase=phase, outcome=outcome, duration_s=0.1, ended_at_s=at_s, message=f"{phase} {outcome}"
    )


def progress(*reports, **more):
    return RankProgress(rank=0, pid=1, log="rank0.log", phase="teardown", reports=list(reports), **more)


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
        (Exit(code=0), "exited with code 0 in teardown, before it reported"),
    ],
)
def test_a_death_outweighs_what_was_said_before(death, message):
    record = progress(SETUP, ended("call", Outcome.PASSED), death=death, died_at_s=2.0).record(1.0)

    assert (message, None, 1.0) == (record.message, record.outcome, record.failed_after_s)


def test_a_last_word_follows_the_signal():
    record = progress(death=Exit(signal=9), died_at_s=2.0, last_words="memory ran out").record(1.0)

    assert "was killed by SIGKILL in teardown, before it reported: memory ran out" == record.message


def test_the_stacks_of_a_crash_belong_to_the_record():
    crash = 'Current thread (most recent call first):\n  File "test_x.py", line 3 in test_x'

    assert crash == progress(death=Exit(signal=11), died_at_s=2.0, crash=crash).record(1.0).stacks


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
    monkeypatch.setattr(rank_handles, "monotonic", lambda: 101.0)

    assert taken == rank_handles._within(ended("call", Outcome.FAILED, told), 100.0).ended_at_s


def strict_pass():
    return PhaseEnded(
        phase="call",
        outcome=Outcome.XPASSED,
        duration_s=0.1,
        ended_at_s=1.0,
        message="[XPASS(strict)] known",
        strict=True,
    )


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([SETUP, ended("teardown", Outcome.PASSED)], RankState.NOT_RUN),
        ([], RankState.NOT_RUN),
        ([SETUP, ended("call", Outcome.PASSED), ended("teardown", Outcome.SKIPPED)], RankState.PASSED),
        ([SETUP, strict_pass(), ended("teardown", Outcome.SKIPPED)], RankState.STRICT),
        ([SETUP, strict_pass(), ended("teardown", Outcome.XFAILED)], RankState.STRICT),
        ([SETUP, strict_pass(), ended("teardown", Outcome.ERROR)], RankState.ERROR),
        ([SETUP, ended("call", Outcome.XFAILED), ended("teardown", Outcome.SKIPPED)], RankState.XFAILED),
    ],
)
def test_what_a_rank_comes_to_over_its_phases(reports, expected):
    assert expected is state_of(progress(*reports, done=TestDone()).record(0.0))


@pytest.mark.parametrize("outcome", [Outcome.SKIPPED, Outcome.XFAILED])
def test_a_subtest_that_does_not_fail_does_not_speak_for_the_rank(outcome):
    subtest = PhaseEnded(phase="call", outcome=outcome, duration_s=0.1, ended_at_s=1.0, partial=True)
    record = progress(SETUP, subtest, ended("call", Outcome.PASSED), done=TestDone()).record(0.0)

    assert (Outcome.PASSED, 1, RankState.PARTLY) == (
        record.outcome,
        record.subtests_skipped,
        state_of(record),
    )


@pytest.mark.parametrize("partial", [True, False])
def test_a_failed_subtest_is_told_from_a_failed_test(partial):
    failed = PhaseEnded(phase="call", outcome=Outcome.FAILED, duration_s=0.1, ended_at_s=1.0, partial=partial)

    assert partial is progress(SETUP, failed, done=TestDone()).record(0.0).in_subtest


@pytest.mark.parametrize("phase", ["setup", "call"])
@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"death": Exit(code=70)}, "exited with code 70 in teardown"),
        ({"death": Exit(signal=6), "last_words": "x"}, "was killed by SIGABRT in teardown: x"),
        (
            {"lost": "it closed its control channel"},
            "was given up in teardown: it closed its control channel",
        ),
        (
            {"death": Exit(signal=9), "done": TestDone()},
            "was killed by SIGKILL after it had finished the test",
        ),
    ],
    ids=["exits", "aborts", "is lost", "dies later"],
)
def test_a_failure_is_the_reason_of_the_death_that_follows(phase, end, words):
    record = progress(SETUP, ended(phase, Outcome.FAILED, 1.5), died_at_s=3.0, **end).record(1.0)

    assert f"{phase} failed; then it {words}" == record.message
    assert (phase, Outcome.FAILED, 0.5) == (record.phase, record.outcome, record.failed_after_s)
    assert record.has_died
    assert RankState.DIED is state_of(record)


def test_an_expected_failure_excuses_no_death():
    record = progress(SETUP, ended("call", Outcome.XFAILED), death=Exit(code=70), died_at_s=2.0).record(1.0)

    assert ("exited with code 70 in teardown, before it reported", None) == (record.message, record.outcome)


def attempt(**more):
    test = TestCase(
        nodeid="t", slug="t", classname="c", name="t", file="t.py", line=1, suite="s", timeout_s=10.0
    )
    return Attempt(test=test, number=1, started_s=100.0, started_at_s=0.0, ranks=[progress()], **more)


def test_limits_stand_still_while_a_rank_is_debugged():
    running = attempt()
    running.hold(105.0, on=True)
    running.note_failure(105.1)
    running.hold(500.0, on=True)
    assert not running.overdue(500.0, grace_s=0.3)
    assert running.next_check_s(500.0, grace_s=0.3) > 100, "nobody looks at the clock all the time"

    running.hold(505.0, on=False)
    assert not running.overdue(505.05, grace_s=0.3)
    assert running.overdue(505.5, grace_s=0.3)
    assert 100.0 == running.started_s, "what ranks said before is told by the same clock"


def test_the_rest_of_the_limit_counts_afterwards():
    running = attempt()
    running.hold(105.0, on=True)
    running.hold(505.0, on=False)

    assert not running.overdue(509.0, grace_s=0.3)
    assert running.overdue(510.0, grace_s=0.3)
    assert 1.0 == running.next_check_s(509.0, grace_s=0.3)


def test_a_run_that_ends_does_not_wait_for_a_debugger():
    running = attempt()
    running.hold(105.0, on=True)
    running.cancel("SIGINT came", 106.0)

    assert running.overdue(106.0, grace_s=0.3)


def test_a_rank_that_stays_is_done_and_has_the_code_it_would_have_left_with():
    stays = progress(ended("call", Outcome.SKIPPED), done=TestDone(exit_code=86, stays=True))
    leaves = progress(ended("call", Outcome.SKIPPED), done=TestDone(exit_code=86))

    assert (True, 86) == (stays.is_over, stays.record(0.0).exit_code)
    assert (False, None) == (leaves.is_over, leaves.record(0.0).exit_code)


def test_how_a_rank_that_stayed_ends_later_says_nothing_of_its_test():
    done = TestDone(exit_code=0, stays=True)
    record = progress(ended("call", Outcome.PASSED), done=done, death=Exit(signal=9), died_at_s=2.0).record(
        0.0
    )

    assert (RankEnd.REPORTED, Outcome.PASSED, 0, None) == (
        record.end,
        record.outcome,
        record.exit_code,
        record.signal,
    )


def attempt_of(size):
    test = TestCase(nodeid="t", slug="", classname="", name="", file="", line=1, suite="", timeout_s=100)
    ranks = [RankProgress(rank=rank, pid=1, log="") for rank in range(size)]
    return Attempt(test=test, number=1, started_s=0.0, started_at_s=0.0, ranks=ranks)


@pytest.fixture
def clock(monkeypatch):
    """The time at which reports arrive."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(attempt_module, "monotonic", lambda: clock.now_s)
    return clock


@pytest.mark.parametrize(("size", "over_s"), [(2, 1.3), (16, 1.3), (17, 1.5)])
def test_each_report_starts_the_grace_period_again_in_a_large_world_only(clock, size, over_s):
    attempt = attempt_of(size)
    for rank, clock.now_s in enumerate((1.0, 1.2)):
        attempt.take_report(rank, ended("call", Outcome.FAILED, clock.now_s))
        attempt.of(rank).done = TestDone()

    assert over_s == pytest.approx(1.25 + attempt.next_check_s(1.25, 0.3))
    assert not attempt.overdue(over_s - 0.01, 0.3)
    assert attempt.overdue(over_s + 0.01, 0.3)


def lost_peer(at_s):
    return PhaseEnded(
        phase="call",
        outcome=Outcome.FAILED,
        duration_s=0.1,
        ended_at_s=at_s,
        message="RuntimeError: Connection closed by peer",
    )


def test_a_lost_peer_gives_the_others_more_time_than_a_failure():
    attempt = attempt_of(2)
    attempt.take_report(0, lost_peer(1.0))

    assert not attempt.overdue(1.0 + CONSEQUENCE_WAIT_S - 0.1, 0.3)
    assert attempt.overdue(1.0 + CONSEQUENCE_WAIT_S, 0.3)
    assert attempt.failed_s is None

    attempt.take_report(1, ended("call", Outcome.FAILED, 2.0))
    attempt.of(1).done = TestDone()
    assert attempt.overdue(2.5, 0.3)


def test_a_longer_grace_counts_for_a_lost_peer_too():
    attempt = attempt_of(2)
    attempt.take_report(0, lost_peer(1.0))

    assert not attempt.overdue(1.0 + CONSEQUENCE_WAIT_S, CONSEQUENCE_WAIT_S + 1)


def test_a_failure_that_is_being_rendered_ends_nobody_until_its_time_is_up():
    attempt = attempt_of(2)
    attempt.take_report(0, msgspec.structs.replace(ended("call", Outcome.FAILED), unrendered=True))
    attempt.give_up_rendering(older_than_s=60.0)
    assert attempt.failed_s is None

    attempt.give_up_rendering()
    record = attempt.ranks[0].record(0.0)
    assert (attempt.failed_s, record.message) == (1.0, "call failed")


def test_a_rendered_report_replaces_what_was_known_before():
    rank = progress()
    rank.take_report(msgspec.structs.replace(ended("call", Outcome.FAILED), unrendered=True, message="first"))
    rank.take_report(ended("call", Outcome.FAILED))
    rank.done = TestDone()
    record = rank.record(0.0)

    assert (record.message, record.unrendered) == ("call failed", False)


def test_the_time_to_tear_down_begins_when_the_report_has_been_rendered(clock):
    attempt = attempt_of(2)
    clock.now_s = 2.9
    attempt.take_report(0, ended("call", Outcome.FAILED, 1.0))

    assert not attempt.overdue(2.9 + OWN_TEAR_DOWN_S - 0.1, 0.3)
    assert attempt.overdue(2.9 + OWN_TEAR_DOWN_S, 0.3)


def test_a_rank_that_has_failed_too_has_time_to_render_its_report(clock):
    attempt = attempt_of(2)
    clock.now_s = 1.1
    attempt.take_report(1, msgspec.structs.replace(ended("call", Outcome.FAILED), unrendered=True))
    attempt.take_report(0, ended("call", Outcome.FAILED))
    attempt.of(0).done = TestDone()

    assert pytest.approx(1.1 + RENDERING_LEAST_S) == 1.1 + attempt.next_check_s(1.1, 0.3)
    assert not attempt.overdue(3.0, 0.3)
    assert attempt.overdue(3.2, 0.3)

    clock.now_s = 1.2
    attempt.take_report(1, ended("call", Outcome.FAILED))
    assert pytest.approx(1.2 + OWN_TEAR_DOWN_S) == 1.2 + attempt.next_check_s(1.2, 0.3)
    attempt.of(1).done = TestDone()
    assert attempt.overdue(1.4, 0.3)
