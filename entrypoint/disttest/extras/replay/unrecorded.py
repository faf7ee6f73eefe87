"""Find the tests that ``--record`` does not record, so that the run can say so at its beginning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from disttest.extras.replay.hooks import RECORD, RecordRule
from disttest.model import TestCase, WorldKind, WorldShape
from disttest.options.run import RunOptions
from disttest.planning.backends import CPU


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
