"""From what the ranks of a test have reported to the findings of the sanitizers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from disttest.model import Outcome, TestResult
from disttest.results.sanitized import with_findings
from disttest.runtime.world.attempt import RankProgress
from disttest.sanitizers.choice import Chosen
from disttest.sanitizers.table import SANITIZERS


def sanitized(result: TestResult, ranks: Sequence[RankProgress], chosen: Sequence[Chosen]) -> TestResult:
    """The result with what the sanitizers have found, if the test has passed on all ranks.

    What a rank calls that fails, skips or is ended early differs from what the others call for that reason alone.

    Args:
        result: as the ranks' own outcomes have it.
        ranks: all of the world.
        chosen: the sanitizers that are on.
    """
    if {record.outcome for record in result.ranks} != {
        Outcome.PASSED
    } or result.outcome is not Outcome.PASSED:
        return result
    for each in chosen:
        reports = {
            progress.rank: progress.done.seen[each.name]
            for progress in ranks
            if progress.done is not None and each.name in progress.done.seen
        }
        if len(reports) == len(ranks):
            findings, notes = SANITIZERS[each.name].judge(reports)
            findings = tuple(msgspec.structs.replace(finding, fails=each.fails) for finding in findings)
            result = with_findings(result, findings, notes)
    return result
