"""Reuse of living ranks: when it is allowed, when its outcome is ignored, and when the ranks end."""

import pytest

from disttest.model import Outcome, TestCase
from disttest.plugins.launching_classes.team import HostedAttempt, RankRequest, ReusedTeam
from disttest.runtime.messages.protocol import PhaseEnded, TestDone
from disttest.runtime.world.attempt import RankProgress

STAYS = TestDone(exit_code=0, stays=True)
LEAVES = TestDone(exit_code=0)


class Rank:
    code = None

    def note_end(self, code):
        self.code = code


class Team:
    """Ranks without processes."""

    owner = None
    alive = True

    def __init__(self):
        self.ranks = [Rank(), Rank()]

    def is_alive(self):
        return self.alive

    def reset_handles(self):
        self.ranks = [Rank(), Rank()]


class Case:
    def test_it(self):
        pass


def request_ranks(**changes):
    whole = {"cls": Case, "own_classes": (Case,), "size": 2, "keywords": (), "method": "test_it"}
    return RankRequest(**{**whole, "file_name": "f", "run": print, **changes})


def report(outcome):
    return PhaseEnded(phase="call", outcome=outcome, duration_s=0.1, ended_at_s=1.0)


def attempt(*done, outcome=Outcome.PASSED, cancelled=""):
    test = TestCase(nodeid="t", slug="", classname="", name="", file="", line=1, suite="")
    ranks = [
        RankProgress(rank=rank, pid=1, log="", phase="call", reports=[report(outcome)], done=each)
        for rank, each in enumerate(done)
    ]
    whole = HostedAttempt(test=test, number=1, started_s=0.0, started_at_s=0.0, ranks=ranks)
    whole.cancelled = cancelled
    return whole


@pytest.fixture
def team():
    return Team()


@pytest.fixture
def reused(team):
    reused = ReusedTeam()
    reused.replace(request_ranks(), team)
    reused.begin_test(team)
    return reused


def test_no_rank_is_reused_before_the_first_fork():
    assert not ReusedTeam().may_run(request_ranks())


def test_living_ranks_run_the_next_test_of_their_class(reused):
    assert reused.may_run(request_ranks(method="test_other", file_name="g"))


@pytest.mark.parametrize("other", [{"cls": str}, {"size": 3}, {"keywords": (("fake_pg", True),)}])
def test_a_class_that_starts_them_differently_gets_new_ranks(reused, other):
    assert not reused.may_run(request_ranks(**other))


def test_a_dead_rank_is_not_reused(reused, team):
    team.alive = False

    assert not reused.may_run(request_ranks())


def test_ranks_whose_inheritance_is_outdated_are_not_reused(reused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert not reused.may_run(request_ranks())
    assert "directory" == reused.outdated


def test_reused_ranks_receive_changed_environment_variables(reused, team, monkeypatch):
    monkeypatch.setenv("ONE_MORE", "1")

    assert reused.may_run(request_ranks())
    assert ((b"ONE_MORE", b"1"),) == reused.begin_test(team)


def test_ranks_that_all_stay_are_kept_and_seem_to_have_ended(reused, team):
    assert None is reused.finish_test(attempt(STAYS, TestDone(exit_code=86, stays=True)))
    assert [0, 86] == [rank.code for rank in team.ranks]
    assert reused.may_run(request_ranks())


@pytest.mark.parametrize("last", [LEAVES, None])
def test_one_rank_that_does_not_stay_ends_them_all(reused, team, last):
    assert team is reused.finish_test(attempt(STAYS, last))
    assert not reused.may_run(request_ranks())


def test_a_failure_counts_in_ranks_that_have_run_nothing_else(reused):
    assert not reused.must_be_run_again(attempt(LEAVES, LEAVES, outcome=Outcome.FAILED), is_good=False)


def test_a_failure_in_used_ranks_does_not_count(reused, team):
    reused.begin_test(team)

    failed = attempt(LEAVES, LEAVES, outcome=Outcome.FAILED)
    assert reused.must_be_run_again(failed, is_good=False)
    assert not reused.must_be_run_again(attempt(STAYS, STAYS), is_good=True)
    assert not reused.must_be_run_again(attempt(STAYS, None, cancelled="Ctrl-C"), is_good=False)


def test_a_rank_that_dies_while_it_is_cleaned_says_nothing_of_its_test(reused):
    assert reused.must_be_run_again(attempt(STAYS, None), is_good=False)
