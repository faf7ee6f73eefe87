"""Convert the result of a run into the rows of the history."""

from __future__ import annotations

import hashlib
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from disttest.extras.history.git_facts import CommitFacts
from disttest.extras.history.hooks import NAME
from disttest.extras.history.limits import CLOCK_SKEW_S, MESSAGE, OLDEST_S
from disttest.model import Outcome, WorldShape
from disttest.planning.timings import hardware_key, is_usable
from disttest.reports import aggregates
from disttest.reports.text import clean, one_line
from disttest.results.fold import RunResult, TestOutcome

COLUMNS = (
    *("key", "started_at_s", "duration_s", "exit_code", "is_green", "tests", "ran", "bad", "flaky"),
    *("infrastructure", "commit", "branch", "is_dirty", "hardware", "disttest", "torch", "python"),
)
"""Columns of the table ``run`` without its id."""


# Compared as text: the reason of an expected failure is all that pytest's report of an ordinary test can carry.
QUARANTINED = "in quarantine"
"""The message of a failure begins so that does not count, since the test is in quarantine."""


class Verdict(NamedTuple):
    """Outcome of a test in a run."""

    test: str
    file: str
    suite: str
    size: int | None
    backend: str
    kind: str
    attempts: int
    failed: int
    """Number of failed attempts."""
    duration_s: float | None
    """Duration of the last attempt; None if a clock jumped meanwhile."""
    message: str
    """Message of the first attempt that failed."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """All rows of a run."""

    run: Mapping[str, object]
    """Column -> value."""
    project: str
    """Empty if unknown."""
    verdicts: Sequence[Verdict]
    starts: Sequence[tuple[int, str, str, int, float]] = ()
    """Size, backend, device, nodes and seconds until the first test of worlds."""
    parts: Sequence[str] = ()
    """Keys of the runs of shards that this run joins."""
    warnings: Sequence[str] = field(default=())

    @property
    def key(self) -> str:
        """Unique key of the run."""
        return str(self.run["key"])


def record_of(run: RunResult, given: CommitFacts, *, now_s: float) -> RunRecord:
    """Make the record of a run.

    Args:
        run: the result.
        given: facts that the run itself does not record; its project is used for all.
        now_s: seconds since the epoch, for runs whose clock was wrong.
    """
    own = _own_facts(run)
    at_s, warnings = _checked_start(run, now_s)
    tally = aggregates.tally(run)
    columns = {
        "key": _key(run),
        "started_at_s": at_s,
        "duration_s": run.duration_s,
        "exit_code": run.exit_code,
        "is_green": aggregates.is_green(run),
        "tests": tally.total,
        "ran": tally.total - tally.left_out,
        "bad": tally.bad,
        "flaky": tally.flaky,
        "infrastructure": tally.infrastructure,
        "commit": clean(own.commit or given.commit),
        "branch": clean(own.branch or given.branch),
        "is_dirty": own.is_dirty,
        # Reports of other tools do not say on which machine they were made.
        "hardware": clean(hardware_key(run.hardware)) if run.disttest else "",
        "disttest": clean(run.disttest),
        "torch": clean(run.hardware.torch),
        "python": clean(run.hardware.python),
    }
    return RunRecord(
        run=columns,
        project=given.project or own.project,
        verdicts=[_verdict(test, is_foreign=not run.disttest) for test in run.tests],
        starts=_starts(run),
        parts=[shard.run_id for shard in run.shards if shard.run_id],
        warnings=warnings,
    )


def _own_facts(run: RunResult) -> CommitFacts:
    try:
        return msgspec.convert(run.invocation.data.get(NAME, {}), CommitFacts)
    except msgspec.ValidationError:  # written by a later version
        return CommitFacts()


def _key(run: RunResult) -> str:
    """Return the key of a run. All merged runs of a plan have one run id, so their shards distinguish them."""
    if run.run_id and not run.shards:
        return clean(run.run_id)
    # A shard whose controller did not start has no id.
    shards = sorted(shard.run_id or str(shard.started_at_s) for shard in run.shards)
    said = [run.run_id, run.root, str(run.started_at_s), *shards]
    return f"run-{hashlib.sha256(clean(chr(0).join(said)).encode()).hexdigest()[:16]}"


def _checked_start(run: RunResult, now_s: float) -> tuple[float, list[str]]:
    """Return the start of a run. A clock that was not set, or is ahead, would sort the run wrongly forever."""
    if OLDEST_S <= run.started_at_s <= now_s + CLOCK_SKEW_S:
        return run.started_at_s, []
    return now_s, [
        f"run {run.run_id}: its clock said {run.started_at_s:.0f} s since 1970; it counts as a run of now"
    ]


def _verdict(test: TestOutcome, *, is_foreign: bool) -> Verdict:
    case, final = test.test, test.final
    hides = is_quarantined(test)
    # A failure in quarantine is an expected one in the run, but a failure in the past of the test.
    failed = [attempt for attempt in test.attempts if attempt.outcome.is_bad or (hides and attempt is final)]
    world = case.world
    return Verdict(
        test=clean(case.nodeid),
        file=clean(case.file),
        suite=clean(case.suite),
        size=None if is_foreign else world.size if world else 0,
        backend=world.backend if world else "",
        kind="quarantined" if hides else aggregates.classify(test),
        attempts=len(test.attempts),
        failed=len(failed),
        duration_s=final.duration_s if is_usable(final.duration_s) else None,
        message=one_line(aggregates.finding(failed[0]), MESSAGE) if failed else "",
    )


def is_quarantined(test: TestOutcome) -> bool:
    """Whether the last attempt failed and does not count, since the test is in quarantine."""
    return test.final.outcome is Outcome.XFAILED and test.final.message.startswith(QUARANTINED)


def _starts(run: RunResult) -> list[tuple[int, str, str, int, float]]:
    """Return the median time from the start of a world to its first test, for each shape."""
    first: dict[str, float] = {}
    for attempt in run.attempts:
        if attempt.world_id and attempt.outcome is not Outcome.NOT_RUN:
            first[attempt.world_id] = min(
                attempt.started_at_s, first.get(attempt.world_id, attempt.started_at_s)
            )
    taken: dict[WorldShape, list[float]] = defaultdict(list)
    for world in run.worlds:
        took_s = first.get(world.world_id, -1.0) - world.started_at_s
        if is_usable(took_s):
            taken[world.shape].append(took_s)
    return [
        (shape.size, shape.backend, shape.device, shape.nodes, statistics.median(times))
        for shape, times in taken.items()
    ]
