"""The report of a rank that stays for several tests."""

from types import SimpleNamespace

import pytest

from disttest.model import Outcome
from disttest.plugins.launching_classes.account import Account


@pytest.mark.parametrize(
    ("code", "outcome"), [(74, Outcome.SKIPPED), (3, Outcome.FAILED), ([74], Outcome.FAILED)]
)
def test_a_rank_may_exit_with_any_object(code, outcome):
    sent = []

    Account(SimpleNamespace(send=sent.append)).report_kept(SystemExit(code), {74: "CUDA is not available."})

    assert outcome == sent[-1].outcome
