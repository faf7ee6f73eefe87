"""Tests of which ``--record`` keeps nothing; a line says so when the run begins, not when a recording is looked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from disttest.extras.replay.option_rows import RECORD, RecordRule
from disttest.model import TestCase, WorldKind, WorldShape
from disttest.options.run import RunOptions
from disttest.planning.backends import CPU


def why_unrecorded(world: WorldShape | None, kind: WorldKind, options: RunOptions) -> str:
    """Which tests it is one of that cannot be recorded, in words; empty where its ranks can be.

    Args:
        world: that the test runs in.
        kind: how it meets its ranks.
        options: of the run.
    """
    if world is None or kind is WorldKind.PROCESS:
        return "without ranks"
    reasons = {
        "whose ranks collect by themselves": options.ranks_collect,
        "whose classes start their ranks": kind is not WorldKind.RANKS,
        "with ranks on GPUs (--device cpu records them over gloo)": world.device != CPU,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def unrecorded(tests: Iterable[TestCase], options: RunOptions) -> list[str]:
    """What is to be said before a run that records: how many tests leave no recording, and why.

    Args:
        tests: of the run; those without ranks are not counted.
        options: of the run.
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
