"""Which recordings of a test stay when it is over."""

from __future__ import annotations

from disttest.extras.replay.format import SUFFIX
from disttest.extras.replay.option_rows import RecordRule
from disttest.extras.replay.recorded import with_recorded
from disttest.model import ALONE, TestResult
from disttest.runtime.world.judged_attempt import JudgedAttempt


def keep_recordings(attempt: JudgedAttempt, result: TestResult, rule: RecordRule) -> TestResult:
    """Remove the recordings of a test that has passed, unless all are wanted; else the result names whose there are."""
    files = {
        progress.rank: attempt.log_of(progress.rank).with_suffix(SUFFIX)
        for progress in attempt.ranks
        if progress.log
    }
    if rule is RecordRule.FAILURES and not (result.outcome.is_bad or result.findings):
        for file in files.values():
            file.unlink(missing_ok=True)
    # On GPUs a recording only says that it cannot be replayed.
    on_cpus = (attempt.test.world or ALONE).device == "cpu"
    return with_recorded(result, tuple(rank for rank, file in files.items() if on_cpus and file.is_file()))
