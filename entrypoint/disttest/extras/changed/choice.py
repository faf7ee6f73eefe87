"""Selects the tests that a change can affect. Pure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from disttest.extras.changed.changes import Changes
from disttest.extras.changed.record import Miss, Ran, Record, RecordedTest, renamed
from disttest.extras.changed.sources import MODULE, UNKNOWN, Sources, Unit
from disttest.model import Count, Frozen, Outcome

CANARY = "canary"
ENVIRONMENT = "environment"
EVERYTHING = "everything runs"


class Reason(Frozen):
    """Why a test runs, in the record of the run."""

    why: str
    """``new``, ``failed last time``, ``skipped last time``, ``in quarantine``, ``environment``, ``affected``,
    ``everything runs`` or ``canary``."""
    by: str = ""
    """A changed part that it uses."""


class Choice(Frozen):
    """The tests of a run, and the time that it saved, in the record of the run."""

    base: str
    """The commit that the files were compared with."""
    selected: dict[str, Reason]
    """Node id -> reason."""
    everything_because: str = ""
    """Why no test was left out; empty if tests could be."""
    left_out: Count = 0
    saved_s: float = 0.0
    saved_gpu_s: float = 0.0

    @property
    def canaries(self) -> int:
        """Number of tests that run although nothing affects them."""
        return sum(reason.why == CANARY for reason in self.selected.values())


def choose(
    tests: Sequence[str],
    record: Record,
    changes: Changes,
    sources: Sources,
    *,
    environment: Mapping[str, str],
    quarantined: Collection[str] = (),
    canaries: float,
) -> Choice:
    """Select tests.

    Args:
        tests: node ids of the collected tests.
        record: parts that they used in their last runs.
        changes: the difference from the revision.
        sources: the files as they are.
        environment: what all tests depend on.
        quarantined: tests that always run.
        canaries: share of the other tests that run, at least one unless it is 0.
    """
    # The record has the names of its time. Without this step each test of a renamed file would be new.
    record = renamed(record, changes.renamed)
    # Once for all tests: they share most parts, and each digest reads a file.
    stale = dict(_stale(record, changes, sources))
    modules: dict[str, set[int]] = defaultdict(set)
    for place, (file, part, _) in enumerate(record.units):
        if part == MODULE:
            modules[file].add(place)
    known = {test: record.tests.get(test) for test in tests}
    selected = {
        test: reason
        for test, recorded in known.items()
        if (reason := _reason(record, recorded, stale, environment, is_quarantined=test in quarantined))
        or (recorded and (reason := _of_new_conftest(test, recorded, modules, sources)))
    }
    # Sorted, since the draw depends on the order, and plugins may have shuffled the tests.
    left = sorted(test for test in tests if test not in selected)
    chosen = _sample(left, canaries, changes.head)
    selected.update({test: Reason(why=CANARY) for test in chosen})
    # A test without a record has no duration, and is selected in any case.
    out = [recorded for test in left if test not in selected and (recorded := known[test])]
    return Choice(
        base=changes.base,
        selected=selected,
        left_out=len(out),
        saved_s=sum(test.duration_s for test in out),
        saved_gpu_s=sum(test.duration_s * test.gpus for test in out),
    )


def everything(tests: Sequence[str], base: str, because: str) -> Choice:
    """Select all tests."""
    return Choice(
        base=base,
        selected={test: Reason(why=EVERYTHING) for test in tests},
        everything_because=because,
    )


def failed_canaries(choice: Choice, ran: Mapping[str, Ran]) -> list[Miss]:
    """Return the canaries that failed; the run may have ended before it came to some."""
    canaries = (test for test, reason in choice.selected.items() if reason.why == CANARY and test in ran)
    return [Miss(test=test, base=choice.base) for test in canaries if ran[test].outcome.is_bad]


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describe what differs between two environments; empty if nothing does."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if not names:
        return ""
    shown = [f"{name}: {before.get(name, 'none')} -> {now.get(name, 'none')}" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _stale(record: Record, changes: Changes, sources: Sources) -> Iterator[tuple[int, str]]:
    """Yield the places of parts that changed since a test was recorded, or since the revision."""
    for place, (file, part, digest) in enumerate(record.units):
        unit: Unit = (file, part)
        # Two comparisons: the record may be older than the revision, and then its digests show more. It may
        # also be newer, and then only the revision shows the change.
        if digest == UNKNOWN or unit in changes.units or sources.digest(unit) != digest:
            yield place, f"{unit[0]}::{part}" if unit[0] and part else unit[0] or part


def _reason(
    record: Record,
    test: RecordedTest | None,
    stale: Mapping[int, str],
    environment: Mapping[str, str],
    *,
    is_quarantined: bool,
) -> Reason | None:
    # The first reason that applies is the one that reports show, so the order is from the surest to the
    # vaguest.
    if test is None:
        return Reason(why="new")
    if is_quarantined:
        return Reason(why="in quarantine")
    if test.outcome is not Outcome.PASSED:
        # The condition of a skip may depend on the machine, and such a test costs next to nothing.
        return Reason(why="skipped last time" if test.outcome is Outcome.SKIPPED else "failed last time")
    if by := difference(record.environments[test.environment], environment):
        return Reason(why=ENVIRONMENT, by=by)
    found = next((stale[place] for place in test.units if place in stale), None)
    return None if found is None else Reason(why="affected", by=found)


def _of_new_conftest(
    test: str, recorded: RecordedTest, modules: Mapping[str, set[int]], sources: Sources
) -> Reason | None:
    """Return a reason if a conftest applies that did not when the test ran: it is new, or the test was moved."""
    conftests = sources.conftests_of(test.partition("::")[0])
    new = next((each for each in conftests if modules[each].isdisjoint(recorded.units)), None)
    return None if new is None else Reason(why="affected", by=new)


def _sample(left: Sequence[str], share: float, seed: str) -> list[str]:
    if not left or not share:
        return []
    # The seed is the commit: a repeated CI job runs the same canaries, and the next commit draws others. A
    # text as a seed does not go through hash(), which differs from process to process.
    return random.Random(seed).sample(left, min(len(left), max(1, round(share * len(left)))))  # noqa: S311
