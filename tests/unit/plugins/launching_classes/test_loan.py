"""When living ranks are lent to another test, when what they came to does not count, and when they are given up."""

import pytest

from disttest.model import Outcome, TestCase
from disttest.plugins.launching_classes.loan import LentTeam, Loan
from disttest.plugins.launching_classes.team import HostedAttempt
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

    def show_anew(self):
        self.ranks = [Rank(), Rank()]


class Case:
    def test_it(self):
        pass


def loan(**changes):
    whole = {"cls": Case, "own_classes": (Case,), "size": 2, "keywords": (), "method": "test_it"}
    return Loan(**{**whole, "file_name": "f", "run": print, **changes})


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
def lent(team):
    lent = LentTeam()
    lent.replace(loan(), team)
    lent.lend(team)
    return lent


def test_nobody_is_lent_before_the_first_fork():
    assert not LentTeam().may_run(loan())


def test_living_ranks_run_the_next_test_of_their_class(lent):
    assert lent.may_run(loan(method="test_other", file_name="g"))


@pytest.mark.parametrize("other", [{"cls": str}, {"size": 3}, {"keywords": (("fake_pg", True),)}])
def test_who_starts_them_in_another_way_gets_new_ones(lent, other):
    assert not lent.may_run(loan(**other))


def test_a_dead_rank_is_lent_to_nobody(lent, team):
    team.alive = False

    assert not lent.may_run(loan())


def test_ranks_that_have_not_inherited_what_new_ones_would_are_not_lent(lent, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert not lent.may_run(loan())
    assert "directory" == lent.outdated


def test_variables_of_the_environment_are_told_to_them(lent, team, monkeypatch):
    monkeypatch.setenv("ONE_MORE", "1")

    assert lent.may_run(loan())
    assert ((b"ONE_MORE", b"1"),) == lent.lend(team)


def test_ranks_that_all_stay_are_kept_and_seem_to_have_ended(lent, team):
    assert None is lent.take_back(attempt(STAYS, TestDone(exit_code=86, stays=True)))
    assert [0, 86] == [rank.code for rank in team.ranks]
    assert lent.may_run(loan())


@pytest.mark.parametrize("last", [LEAVES, None])
def test_one_rank_that_does_not_stay_ends_them_all(lent, team, last):
    assert team is lent.take_back(attempt(STAYS, last))
    assert not lent.may_run(loan())


def test_a_failure_counts_in_ranks_that_have_run_nothing_else(lent):
    assert not lent.must_be_run_again(attempt(LEAVES, LEAVES, outcome=Outcome.FAILED), is_good=False)


def test_a_failure_in_used_ranks_does_not_count(lent, team):
    lent.lend(team)

    failed = attempt(LEAVES, LEAVES, outcome=Outcome.FAILED)
    assert lent.must_be_run_again(failed, is_good=False)
    assert not lent.must_be_run_again(attempt(STAYS, STAYS), is_good=True)
    assert not lent.must_be_run_again(attempt(STAYS, None, cancelled="Ctrl-C"), is_good=False)


def test_a_rank_that_dies_while_it_is_cleaned_says_nothing_of_its_test(lent):
    assert lent.must_be_run_again(attempt(STAYS, None), is_good=False)
