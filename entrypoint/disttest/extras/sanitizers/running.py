"""Run the sanitizers: their table, the recorders in a rank, and the judgement of all reports in the world."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Sequence

import msgspec

from disttest import observe
from disttest.extras.sanitizers.choice import Chosen, words_of
from disttest.extras.sanitizers.order.order_judge import judge_reports as judge_order
from disttest.extras.sanitizers.order.order_recorder import OrderRecorder
from disttest.extras.sanitizers.race.race_judge import judge_reports as judge_races
from disttest.extras.sanitizers.race.race_recorder import RaceRecorder
from disttest.extras.sanitizers.race.windows import NCCL, Policy
from disttest.extras.sanitizers.sanitizer import Sanitizer, SanitizerRecorder
from disttest.extras.sanitizers.values.value_judge import judge_reports as judge_values
from disttest.extras.sanitizers.values.values_file import FILE_NAME, encode_recording
from disttest.hookspecs import hookimpl
from disttest.model import ALONE, Outcome, TestResult
from disttest.outgoing import outgoing
from disttest.results.findings import with_findings
from disttest.runtime.rank.rank_test import RankTest
from disttest.runtime.world.judged_attempt import JudgedAttempt


def _values(rank: int, policy: str) -> SanitizerRecorder:
    # Imported late: it needs torch and numpy.
    from disttest.extras.sanitizers.values.value_recorder import ValuesRecorder

    del policy
    return ValuesRecorder(rank)


SANITIZERS = {
    "order": Sanitizer(make_recorder=lambda rank, _: OrderRecorder(rank), judge=judge_order),
    "race": Sanitizer(
        make_recorder=lambda rank, policy: RaceRecorder(rank, Policy(as_nccl=policy == NCCL)),
        judge=judge_races,
    ),
    "values": Sanitizer(make_recorder=_values, judge=judge_values, kept_as=FILE_NAME),
}


class Recorders:
    """Recorders that observe each call and report at the end of each test.

    Args:
        chosen: the enabled sanitizers.
        rank: number of this rank.
    """

    def __init__(self, chosen: Sequence[Chosen], rank: int) -> None:
        # A rank without torch calls no collectives and must not pay for the import.
        wanted = chosen if "torch.distributed" in sys.modules else ()
        self._recorders = {
            each.name: SANITIZERS[each.name].make_recorder(rank, each.policy) for each in wanted
        }
        if self._recorders:
            observe.install(*self._recorders.values())

    @hookimpl(wrapper=True)
    def disttest_rank_test(self, test: RankTest) -> Generator[None, bool, bool]:
        """Record a test."""
        for recorder in self._recorders.values():
            recorder.begin()
        result = yield
        for name, recorder in self._recorders.items():
            test.report(name, recorder.report())
        return result


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
        # A rank that never imported torch.distributed has no report, so nothing can be compared.
        if len(reports) == len(attempt.ranks):
            findings, notes = SANITIZERS[each.name].judge(reports)
            words = words_of(each.name)
            # Whether a finding fails the test is the user's choice, which judges do not know.
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
                attempt.log_of(0).with_name(file).write_bytes(outgoing.json(data))
