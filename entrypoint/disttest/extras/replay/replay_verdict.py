"""Compare the outcome of a replay with the recorded one."""

from __future__ import annotations

from disttest.errors import ExitCode
from disttest.model import Frozen, Outcome

_OTHER_VALUES = (
    "the rank handed over other values than recorded, first in {}; check for clocks, files, devices and random generators "
    "of the test. Another kind of processor or another torch changes values, too"
)
_FILES = "files written by peers are not recorded"


class RecordedOutcome(Frozen):
    """The recording to replay and the recorded outcome of the rank."""

    recording: str
    """Absolute path of the recording."""
    outcome: Outcome | None
    """None: the rank was ended, or died, before it reported."""
    message: str


class Replayed(Frozen):
    """Outcome of the replayed rank."""

    outcome: Outcome
    message: str
    calls: int
    ended: str = ""
    """Call at which the recording ended, if the rank issued more."""
    diverged: str = ""
    """Action of the rank that was not recorded."""
    other_values: str = ""
    """The first call with other values than recorded."""


class Verdict(Frozen):
    """Whether the replay matches the recording."""

    words: str
    is_same: bool

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return ExitCode.PASSED if self.is_same else ExitCode.FAILED


def judge(expected: RecordedOutcome, seen: Replayed) -> Verdict:
    """Compare the outcomes."""
    verdict = _compare(expected, seen)
    if not seen.other_values:
        return verdict
    words = f"{verdict.words}\n{_OTHER_VALUES.format(seen.other_values)}"
    return Verdict(words=words, is_same=False)


def _compare(expected: RecordedOutcome, seen: Replayed) -> Verdict:
    if seen.diverged:
        return Verdict(words=f"the rank did something else than recorded: {seen.diverged}", is_same=False)
    if expected.outcome is None and seen.ended:
        return Verdict(words=f"as recorded: {seen.ended}", is_same=True)
    here, then = _words(seen.outcome, seen.message), _words(expected.outcome, expected.message)
    if expected.outcome is not seen.outcome:
        return Verdict(
            words=f"the rank {here}, but in the recording it {then} ({_FILES})",
            is_same=False,
        )
    count = f"after {seen.calls} calls"
    if seen.outcome.is_bad and seen.message != expected.message:
        return Verdict(words=f"the rank {here}, {count}; in the recording it {then}", is_same=True)
    return Verdict(words=f"as recorded: the rank {here}, {count}", is_same=True)


def _words(outcome: Outcome | None, message: str) -> str:
    if outcome is None:
        return f"was ended ({message})" if message else "was ended"
    return f"{outcome}: {message}" if message else str(outcome)
