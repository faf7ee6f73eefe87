"""Decide which recordings of a test to keep."""

from __future__ import annotations

from disttest.extras.replay.format import SUFFIX
from disttest.extras.replay.hooks import RecordRule
from disttest.extras.replay.recorded import with_recorded
from disttest.model import ALONE, TestResult
from disttest.runtime.world.judged_attempt import JudgedAttempt


def keep_recordings(attempt: JudgedAttempt, result: TestResult, rule: RecordRule) -> TestResult:
    """Remove the recordings of a passed test unless all are wanted; otherwise name the recorded ranks in the result."""
    files = {
        progress.rank: attempt.log_of(progress.rank).with_suffix(SUFFIX)
        for progress in attempt.ranks
        if progress.log
    }
    # Every test is recorded: a recording of the retry would show another run, and a rare failure passes then.
    if rule is RecordRule.FAILURES and not (result.outcome.is_bad or result.findings):
        for file in files.values():
            file.unlink(missing_ok=True)
    # On GPUs the file only states that it cannot be replayed.
    on_cpus = (attempt.test.world or ALONE).device == "cpu"
    return with_recorded(result, tuple(rank for rank, file in files.items() if on_cpus and file.is_file()))
