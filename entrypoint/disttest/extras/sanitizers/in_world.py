"""Judge the reports of the ranks of a test."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from disttest.extras.sanitizers.choice import Chosen, words_of
from disttest.extras.sanitizers.table import SANITIZERS
from disttest.extras.sanitizers.values.values_file import encode_recording
from disttest.model import ALONE, Outcome, TestResult
from disttest.outgoing import outgoing
from disttest.results.findings import with_findings
from disttest.runtime.world.judged_attempt import JudgedAttempt


def sanitized(result: TestResult, attempt: JudgedAttempt, chosen: Sequence[Chosen]) -> TestResult:
    """Add the findings of the sanitizers to the result, if the test passed on all ranks.

    A rank that fails, skips or ends early makes other calls than its peers for that reason alone.

    Args:
        result: result from the outcomes of the ranks.
        attempt: attempt of the test.
        chosen: the enabled sanitizers.
    """
    if {record.outcome for record in result.ranks} != {
        Outcome.PASSED
    } or result.outcome is not Outcome.PASSED:
        return result
    for each in chosen:
        reports = attempt.raw_reports(each.name)
        if len(reports) == len(attempt.ranks):
            findings, notes = SANITIZERS[each.name].judge(reports)
            words = words_of(each.name)
            result = with_findings(
                result,
                [msgspec.structs.replace(finding, fails=each.fails, **words) for finding in findings],
                notes,
            )
    return result


def keep_reports(attempt: JudgedAttempt, chosen: Sequence[Chosen]) -> None:
    """Write the reports that ranks have sent, also of failed tests; skip a file if the disk is full.

    Args:
        attempt: the finished attempt.
        chosen: the enabled sanitizers.
    """
    world = attempt.test.world or ALONE
    for name, file in ((each.name, SANITIZERS[each.name].kept_as) for each in chosen):
        reports = attempt.raw_reports(name)
        if file and reports:
            data = encode_recording(attempt.test.nodeid, world.size, world.backend, reports)
            with contextlib.suppress(OSError):
                attempt.log_of(0).with_name(file).write_bytes(outgoing.data(data))
