"""Which tests are recorded, which recordings are kept, and the command that replays one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from disttest.extras.replay.hooks import RECORD, RecordRule
from disttest.model import ALONE, Section, TestCase, TestResult, WorldKind, WorldShape
from disttest.options.run import RunOptions
from disttest.planning.backends import CPU
from disttest.results.findings import with_section
from disttest.results.repeat import Run, quote

if TYPE_CHECKING:
    from disttest.runtime.world.judged_attempt import JudgedAttempt


NAME = "replay"
"""Name of the plugin."""


def with_recorded(result: TestResult, ranks: tuple[int, ...]) -> TestResult:
    """Name the ranks whose recording was kept."""
    return with_section(result, NAME, Section(data=list(ranks))) if ranks else result


def recorded_ranks(result: TestResult) -> tuple[int, ...]:
    """Return the ranks whose recording was kept."""
    section = result.sections.get(NAME)
    return () if section is None else tuple(section.data)


def replay_command(test: TestCase, result: TestResult, run: Run) -> str:
    """Return the command that replays the culprit, or the first recorded rank; empty if no recording was kept."""
    recorded = recorded_ranks(result)
    if not recorded:
        return ""
    # The culprit may have no recording: it may have died before it began the test.
    rank = result.culprit if result.culprit in recorded else recorded[0]
    results = run.invocation.options.get("results")
    words = ["disttest", "replay", *([results] if results else []), test.nodeid, "--rank", str(rank)]
    return " ".join(map(quote, words))


def why_unrecorded(world: WorldShape | None, kind: WorldKind, options: RunOptions) -> str:
    """Describe the kind of tests that cannot be recorded to which this one belongs; empty if its ranks can be recorded.

    Args:
        world: world of the test.
        kind: how the test gets its ranks.
        options: options of the run.
    """
    if world is None or kind is WorldKind.PROCESS:
        return "without ranks"
    reasons = {
        "whose ranks collect the tests": options.ranks_collect,
        "whose classes start their ranks": kind is not WorldKind.RANKS,
        "with ranks on GPUs (--device cpu records them over gloo)": world.device != CPU,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def unrecorded(tests: Iterable[TestCase], options: RunOptions) -> list[str]:
    """Return notes on how many tests leave no recording, and why.

    Args:
        tests: tests of the run; those without ranks are not counted.
        options: options of the run.
    """
    if RECORD.of(options) is RecordRule.OFF:
        return []
    with_ranks = [test for test in tests if test.world is not None]
    reasons = Counter(why_unrecorded(test.world, test.kind, options) for test in with_ranks)
    return [
        f"--record has no effect on {number} of {len(with_ranks)} tests, {why}"
        for why, number in sorted(reasons.items())
        if why
    ]


def keep_recordings(attempt: JudgedAttempt, result: TestResult, rule: RecordRule) -> TestResult:
    """Remove the recordings of a passed test unless all are wanted; otherwise name the recorded ranks in the result."""
    from disttest.extras.replay.format import SUFFIX

    files = {
        progress.rank: attempt.log_of(progress.rank).with_suffix(SUFFIX)
        for progress in attempt.ranks
        if progress.log
    }
    # Every test is recorded: a recording of the retry would show another run, and a rare failure passes then.
    # A failure in quarantine is an expected one, and the most likely one to be replayed.
    if rule is RecordRule.FAILURES and not (result.outcome.is_failure or result.findings):
        for file in files.values():
            file.unlink(missing_ok=True)
    # On GPUs the file only states that it cannot be replayed.
    on_cpus = (attempt.test.world or ALONE).device == "cpu"
    return with_recorded(result, tuple(rank for rank, file in files.items() if on_cpus and file.is_file()))
