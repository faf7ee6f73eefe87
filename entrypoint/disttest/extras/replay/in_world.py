"""Which recordings of a test stay when it is over."""

from __future__ import annotations

import msgspec

from disttest.extras.replay.format import SUFFIX
from disttest.model import ALONE, RecordRule, TestResult
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
    recorded = tuple(rank for rank, file in files.items() if on_cpus and file.is_file())
    return msgspec.structs.replace(result, recorded=recorded)
