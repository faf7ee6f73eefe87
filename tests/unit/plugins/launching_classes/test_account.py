"""The report of a rank that stays for several tests."""

import unittest
from types import SimpleNamespace

import pytest

from disttest.model import Outcome
from disttest.plugins.launching_classes.account import Account, thread_records


@pytest.mark.parametrize(
    ("code", "outcome"), [(74, Outcome.SKIPPED), (3, Outcome.FAILED), ([74], Outcome.FAILED)]
)
def test_a_rank_may_exit_with_any_object(code, outcome):
    sent = []

    Account(SimpleNamespace(send=sent.append)).report_kept(SystemExit(code), {74: "CUDA is not available."})

    assert outcome == sent[-1].outcome


@pytest.mark.parametrize(
    ("base", "outcome"), [(unittest.SkipTest, Outcome.SKIPPED), (OSError, Outcome.FAILED)]
)
def test_an_exception_without_a_text_is_reported_as_it_is(base, outcome):
    class Odd(base):
        def __str__(self):
            raise ValueError

    sent = []
    Account(SimpleNamespace(send=sent.append)).report_kept(Odd(), {})
    (record,) = thread_records(1, [(0, Odd())], log="")

    assert outcome == sent[-1].outcome == record.outcome
    assert "Odd" in sent[-1].message
