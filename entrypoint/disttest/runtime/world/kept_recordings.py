"""Which recordings of an attempt are kept."""

from __future__ import annotations

from disttest.model import RecordRule, TestResult
from disttest.replay.format import SUFFIX
from disttest.results.directory import Home
from disttest.runtime.world.attempt import Attempt


def drop_recordings(attempt: Attempt, result: TestResult, rule: RecordRule, home: Home) -> None:
    """Remove those of a test that has passed, unless all are wanted."""
    if rule is not RecordRule.FAILURES or result.outcome.is_bad or result.findings:
        return
    for progress in attempt.ranks:
        (home.now() / progress.log).with_suffix(SUFFIX).unlink(missing_ok=True)
