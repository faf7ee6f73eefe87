"""Meaning of a rank's exit code where ranks report by exit codes: disttest's reading, and torch's. Pure.

The numbers are torch's: ``torch.testing._internal.common_distributed.TEST_SKIPS``. Codes follow the convention of
``multiprocessing``: a rank that died by a signal has the negative number of the signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from disttest.model import Frozen, Outcome, RankEnd, RankRecord

TEST_ERROR = 10
"""A rank's test raised an exception and reported it through its pipe."""


NO_RANKS = "no rank was started, so nothing was tested (torch's harness passes such a test)"


class TestSkip(NamedTuple):
    """An exit code that means "skipped", and its reason."""

    exit_code: int
    message: str


TEST_SKIPS = {
    "backend_unavailable": TestSkip(72, "Skipped because distributed backend is not available."),
    "small_worldsize": TestSkip(73, "Skipped due to small world size."),
    "odd_worldsize": TestSkip(87, "Skipped due to odd world size."),
    "no_cuda": TestSkip(74, "CUDA is not available."),
    "multi-gpu-1": TestSkip(75, "Need at least 1 CUDA device"),
    "multi-gpu-2": TestSkip(77, "Need at least 2 CUDA devices"),
    "multi-gpu-3": TestSkip(80, "Need at least 3 CUDA devices"),
    "multi-gpu-4": TestSkip(81, "Need at least 4 CUDA devices"),
    "multi-gpu-5": TestSkip(82, "Need at least 5 CUDA devices"),
    "multi-gpu-6": TestSkip(83, "Need at least 6 CUDA devices"),
    "multi-gpu-7": TestSkip(84, "Need at least 7 CUDA devices"),
    "multi-gpu-8": TestSkip(85, "Need at least 8 CUDA devices"),
    "nccl": TestSkip(76, "c10d not compiled with NCCL support"),
    "skipIfRocm": TestSkip(78, "Test skipped for ROCm"),
    "no_peer_access": TestSkip(79, "Test skipped because no GPU peer access"),
    "generic": TestSkip(86, "Test skipped at subprocess level, look at subprocess log for skip reason"),
    "importerror": TestSkip(88, "Test skipped due to missing import"),
    "no_accelerator": TestSkip(89, "accelerator is not available."),
}
SKIP_MESSAGES: dict[int, str] = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


class ExitRule(Frozen):
    """Exit codes that the test itself allows."""

    expected: int = 0
    """Code of rank 0; the others may exit with it or with 0 (``special_return_code_checks``)."""
    any_code: bool = False
    """Whether every code except that of an error is allowed (``skip_return_code_checks``)."""

    def allows(self, code: int, *, rank: int) -> bool:
        """Whether a rank may end with this code; skips are handled before."""
        # torch looks for code 10 in all ranks before it reads `skip_return_code_checks`, so an error still
        # counts.
        if self.any_code:
            return code != TEST_ERROR
        # A test that expects an abort usually expects it of rank 0 only.
        return code == self.expected or (code == 0 and rank > 0)


def exit_code_of(record: RankRecord) -> int | None:
    """Return the code in multiprocessing's convention; None for a rank without one (ended by disttest, or alive)."""
    # disttest's own SIGKILL says nothing about the test.
    if record.end is RankEnd.KILLED:
        return None
    return record.exit_code if record.signal is None else -record.signal


def read_record(record: RankRecord, rule: ExitRule, skips: Mapping[int, str]) -> RankRecord:
    """Interpret the exit code of a record as a pass, a skip or a failure with a message."""
    code = exit_code_of(record)
    # Without a trusted exit code the record stays as it is.
    if code is None or record.end is RankEnd.LOST:
        return record
    if record.has_failed:
        return _with_afterthought(record, code, skips)
    announced = record.end is RankEnd.REPORTED
    if announced and code in skips:
        # torch's generic code carries no reason, but the rank has noted the message of its SkipTest.
        reason = record.message if record.outcome is Outcome.SKIPPED and record.message else skips[code]
        return _read(record, Outcome.SKIPPED, reason)
    # `sys.exit(0)` is a common last line of `_run` and counts as the end of the test. A 0 that was not
    # announced is `os._exit(0)`, after which nothing is known about the rank.
    if rule.allows(code, rank=record.rank) and (announced or code != 0 or rule.any_code):
        return _read(
            record, Outcome.PASSED, "" if code == 0 else f"exited with code {code}, as the test expects"
        )
    if announced:
        wanted = "" if rule.expected == 0 else f", where the test expects {rule.expected}"
        return _read(record, Outcome.FAILED, f"exited with code {code}{wanted}")
    return record


def _with_afterthought(record: RankRecord, code: int, skips: Mapping[int, str]) -> RankRecord:
    if code not in skips:
        return record
    message = (
        f"{record.message} (it then left with {code}, a code for skips, which does not undo the failure)"
    )
    return msgspec.structs.replace(record, message=message)


def _read(record: RankRecord, outcome: Outcome, message: str) -> RankRecord:
    failed_after_s = record.failed_after_s if outcome.is_bad else None
    return msgspec.structs.replace(
        record, end=RankEnd.REPORTED, outcome=outcome, message=message, failed_after_s=failed_after_s
    )


def torch_outcome(records: Sequence[RankRecord], rule: ExitRule, skips: Mapping[int, str]) -> Outcome | None:
    """Return the verdict of torch 2.13's own harness: code 10 is an error, otherwise rank 0 alone decides.

    None if it cannot be known, because disttest ended rank 0.

    Source: ``MultiProcessTestCase._check_return_codes``.
    """
    # torch logs a note about the missing processes, and the test passes.
    if not records:
        return Outcome.PASSED
    # torch also fails the test after its own time limit.
    if any(record.hung or exit_code_of(record) == TEST_ERROR for record in records):
        return Outcome.FAILED
    # As in torch, `skip_return_code_checks` is read after errors and time-outs, and before skips.
    if rule.any_code:
        return Outcome.PASSED
    first = exit_code_of(records[0])
    if first is None:
        return None
    if first in skips:
        return Outcome.SKIPPED
    return Outcome.PASSED if first == rule.expected else Outcome.FAILED


def kept_outcome(records: Sequence[RankRecord]) -> Outcome | None:
    """Return the verdict of torch 2.13's own harness on ranks that stay: the first that did not pass decides.

    None if it cannot be known, because disttest ended that rank.

    Source: ``MultiProcContinuousTest._worker_run_main_wait``.
    """
    # torch drains the queues of all ranks in order and raises the first exception. A skip of rank 0 thus
    # hides a failure of rank 1.
    first = next((record for record in records if record.outcome is not Outcome.PASSED), None)
    if first is None or first.outcome is Outcome.SKIPPED:
        return Outcome.SKIPPED if first else Outcome.PASSED
    was_ended = first.outcome is None and first.end is RankEnd.KILLED and not first.hung
    return None if was_ended else Outcome.FAILED
