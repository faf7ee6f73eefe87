"""Join the results of shards into one run, as a stream: one shard at a time, one event at a time.

The merged run is a journal like any other, so all reporters and the next merge read it. The rules:

- A test that a shard owes and did not finish has failed, and the message names the shard. The same holds for each test
  of a planned shard that never reported. A test that no longer exists, as its shard's run recorded, is not owed; it is
  skipped if its file has skipped itself.
- A test that two shards report counts once. A failure outweighs a pass, in whichever order they come. The reports are
  joined as attempts if the last of them is as bad as any; otherwise the better report is dropped with a note. A skip
  counts only if no shard ran the test.
- With ``reruns``, a shard may report more than once. The later run decides, and the earlier ones are its attempts. As in
  a retry, neither a skip nor a broken machine undoes a failure.
- Logs are hard-linked into ``logs/<shard>/`` of the merged directory, or copied from another file system (up to 1 GiB
  each). A log that was not downloaded, or is not a regular file below its shard, is left out and counted in a note.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, cast

import msgspec

from disttest.errors import ExitCode, UsageError
from disttest.extras.shards.hooks import NAME
from disttest.extras.shards.shard_plan import Plan, Shard, ShardFacts
from disttest.extras.shards.shard_sources import (
    ShardLogs,
    ShardSource,
    find_copies,
    find_shards,
    refuse_repeats,
)
from disttest.model import Cause, Hardware, Invocation, Outcome, ShardSpan, TestCase, TestResult, is_inside
from disttest.results.conclusion import Conclusion, Facts, conclude, join_exit_codes
from disttest.results.events import (
    AnyEvent,
    CollectionFailed,
    Noted,
    RunFinished,
    RunStarted,
    ShardJoined,
    TestCollected,
    TestFinished,
    TestStarted,
    WorldEnded,
    WorldStarted,
)
from disttest.results.fold import DIED_EARLY, RunResult, fold, unfinished
from disttest.results.journal import FILE_NAME, Journal
from disttest.results.verdict import spoiled


class Judged(Protocol):
    """The facts about a test that decide the end of a merged run."""

    @property
    def failed_in(self) -> str:
        """Label of the run whose failure counts; empty if it makes nothing red."""

    @property
    def infrastructure(self) -> bool:
        """Whether a machine is to blame."""


class ShardEnd(NamedTuple):
    """End of a shard."""

    exit_code: int
    reason: str
    has_concluded: bool = True
    """Whether its journal has a last event; otherwise the exit code is assumed."""
    uncollected: bool = False
    """Whether a file could not be collected."""

    @property
    def is_red(self) -> bool:
        """Whether its exit code makes the run red. A shard that claims to be green is checked against its tests."""
        return self.has_concluded and self.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED)


class ShardEnds:
    """Ends of all shards; the later run of a shard decides."""

    def __init__(self) -> None:
        self._ends: dict[str, ShardEnd] = {}
        self._labels: dict[str, str] = {}

    def add(self, name: str, end: ShardEnd, *, label: str = "") -> None:
        """Record the end of a shard; ``label`` names its results among the sources."""
        self._ends[name] = end
        self._labels[name] = label

    def conclude(self, tests: Iterable[Judged], *, planned: bool = False) -> Conclusion:
        """Return the gravest end. A shard that did not report its failure is judged by its tests and files.

        Among exit codes, a failed test outweighs a cancelled shard: GitHub cancels the rest of a matrix once one job
        failed.

        Args:
            tests: tests of all shards.
            planned: whether a plan assigns the tests. Then shards without any test may be right.
        """
        judged = list(tests)
        if not self._ends and not judged:
            return Conclusion(ExitCode.NOTHING_COLLECTED, "no shard had anything to run")
        rest = conclude(self._facts_of_the_rest(judged, empty=not judged and not planned)).exit_code
        # A shard without a last event has an assumed exit code. It counts only if all tests are well.
        is_fine = rest in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED)
        codes = [rest, *(end.exit_code for end in self._ends.values() if end.has_concluded or is_fine)]
        reasons = "; ".join(f"{name}: {end.reason}" for name, end in self._ends.items() if end.reason)
        called = any(end.exit_code != ExitCode.NOTHING_COLLECTED for end in self._ends.values())
        # A test that no longer exists has not run: shards that had only such tests are not green together.
        something_ran = bool(judged) and called
        return Conclusion(join_exit_codes(codes, something_ran=something_ran), reasons)

    def _facts_of_the_rest(self, judged: Iterable[Judged], *, empty: bool) -> Facts:
        """Return the facts about shards that died, never reported, or claim to be green."""
        # The exit codes of these shards already include their failed tests.
        told = {self._labels[name] for name, end in self._ends.items() if end.is_red}
        bad = [test for test in judged if test.failed_in and test.failed_in not in told]
        return Facts(
            uncollected=any(end.uncollected for end in self._ends.values() if not end.is_red),
            failed=any(not test.infrastructure for test in bad),
            spoiled=any(test.infrastructure for test in bad),
            empty=empty,
        )


replace = msgspec.structs.replace
_PASSES = (Outcome.PASSED, Outcome.XPASSED)
T = TypeVar("T")


def merge(
    directories: Sequence[Path],
    into: Path,
    *,
    plan: Plan | None = None,
    expected_shards: int = 0,
    reruns: bool = False,
    disttest: str = "",
) -> RunResult:
    """Join shard results: write the merged journal and its logs into ``into``, and return the merged run.

    Args:
        directories: results directories of shards, or folders that contain some.
        into: an existing directory for the merged results.
        plan: the plan of the shards; it defines the shards and tests that are owed.
        expected_shards: without a plan, the number of shards, numbered from 1.
        reruns: whether a second result of a shard is a rerun of it.
        disttest: version for the merged run.

    Raises:
        UsageError: there are no results and none are planned; a shard reports twice; a shard is from another plan.
    """
    sources = find_shards(directories)
    _check(sources, plan, expected_shards, reruns=reruns)
    journal = Journal(into / FILE_NAME)
    try:
        return fold(_written(_Merge(sources, plan, expected_shards, into, disttest).events(), journal))
    finally:
        journal.close()


def _written(events: Iterable[AnyEvent], journal: Journal) -> Iterator[AnyEvent]:
    for event in events:
        journal.append(event)
        yield event


def _check(sources: Sequence[ShardSource], plan: Plan | None, expected_shards: int, *, reruns: bool) -> None:
    if not sources and plan is None and not expected_shards:
        raise UsageError(
            f"no {FILE_NAME} in the given directories; "
            "download the shards' artifacts first, or pass --plan to have the missing shards reported"
        )
    if not reruns:
        refuse_repeats(sources)
    for source in sources:
        if plan and source.started and source.started.plan_id not in ("", plan.plan_id):
            raise UsageError(
                f"{source.directory} belongs to plan {source.started.plan_id}, not to plan {plan.plan_id}; "
                "merge shards of one plan only"
            )
        last = len(plan.shards) if plan else expected_shards
        if last and source.number is not None and not 0 <= source.number <= last:
            raise UsageError(
                f"{source.directory} is shard {source.number}, but there are only {last}; merge shards of one plan only"
            )


class _Verdict(NamedTuple):
    """Last known result of a test."""

    label: str
    number: int | None
    attempts: int
    failed_in: str
    """Label of the run whose failure counts; empty if it makes nothing red."""
    infrastructure: bool
    has_run: bool

    @property
    def bad(self) -> bool:
        """Whether it makes the run red."""
        return bool(self.failed_in)


class _Merge:
    """State of one merge; :meth:`events` yields the merged journal."""

    def __init__(
        self,
        sources: Sequence[ShardSource],
        plan: Plan | None,
        expected_shards: int,
        into: Path,
        disttest: str,
    ) -> None:
        self._sources = sources
        self._plan = plan
        self._expected_shards = expected_shards
        self._into = into
        self._disttest = disttest
        self._verdicts: dict[str, _Verdict] = {}
        self._same: dict[_Verdict, _Verdict] = {}
        last = {source.number: source.directory for source in sources}
        self._superseded = {
            source.directory
            for source in sources
            if source.number is not None and source.directory != last[source.number]
        }
        # The later run of a shard decides which tests exist, and which files skipped themselves.
        deciding = [source for source in sources if source.directory not in self._superseded]
        self._vanished = {nodeid for source in deciding for nodeid in source.vanished}
        self._outdated_skips: set[str] = set()
        # Files, classes and folders that skipped themselves, with their reasons.
        self._skipped: dict[str, str] = {}
        self._collection_errors: set[tuple[str, str]] = set()
        self._ends = ShardEnds()
        self._last_at_s = 0.0

    def events(self) -> Iterator[AnyEvent]:
        yield self._started()
        for source in self._sources:
            shard = _ShardStream(source, self._into)
            # Read in advance: the event that collects an entry comes before the one that says that it skipped itself.
            self._outdated_skips = (
                {
                    event.result.nodeid
                    for event in source.events()
                    if isinstance(event, TestFinished) and event.result.phase == "collect"
                }
                if source.directory in self._superseded
                else set()
            )
            for event in shard.events():
                yield from self._joined(event, shard)
            self._last_at_s = max(self._last_at_s, shard.span.ended_at_s)
            number = shard.span.shard
            # The later run of a shard also decides how the shard ended.
            name = source.label if number is None else f"shard {number}"
            self._ends.add(name, shard.end, label=source.label)
            if not shard.has_spans:
                yield ShardJoined(at_s=shard.span.ended_at_s, shard=shard.span)
        yield from self._missing()
        code, reason = self._ends.conclude(self._verdicts.values(), planned=self._plan is not None)
        yield RunFinished(at_s=self._last_at_s, exit_code=code, reason=reason)

    def _started(self) -> RunStarted:
        starts = [source.started for source in self._sources if source.started]
        first = starts[0] if starts else None
        asked = first.invocation if first else Invocation()
        # A merge of this merge needs the tests of all shards.
        facts = ShardFacts(vanished=tuple(sorted(self._vanished)))
        self._last_at_s = min((start.at_s for start in starts), default=0.0)
        return RunStarted(
            at_s=self._last_at_s,
            run_id=self._plan.plan_id
            if self._plan
            else "-".join(dict.fromkeys(s.run_id for s in starts))[:64],
            argv=("disttest", "merge", *(source.label for source in self._sources)),
            root=first.root if first else "",
            hardware=_all_hardware([start.hardware for start in starts]),
            slots=sum(start.slots for start in starts),
            disttest=self._disttest or (first.disttest if first else ""),
            plan_id=self._plan.plan_id if self._plan else "",
            invocation=replace(asked, data={**asked.data, NAME: msgspec.to_builtins(facts)}),
            cpu_slots=sum(start.cpu_slots for start in starts),
        )

    def _joined(self, event: AnyEvent, shard: _ShardStream) -> Iterator[AnyEvent]:
        match event:
            case TestCollected(test=entry) | TestFinished(result=entry) if (
                entry.nodeid in self._outdated_skips
            ):
                pass
            case TestCollected(test=test):
                if test.nodeid not in self._verdicts:
                    yield event
            case CollectionFailed(nodeid=nodeid) if shard.source.directory in self._superseded:
                message = (
                    f"{shard.source.label}: not collected in this run of the shard, but a later one counts"
                )
                yield Noted(at_s=event.at_s, nodeid=nodeid, message=message)
            case CollectionFailed(nodeid=nodeid, message=message):
                if (nodeid, message) not in self._collection_errors:
                    self._collection_errors.add((nodeid, message))
                    yield event
            case TestFinished(result=result):
                yield from self._judged(event, result, shard)
            case _:
                yield event

    def _judged(self, event: TestFinished, result: TestResult, shard: _ShardStream) -> Iterator[AnyEvent]:
        label, number = shard.source.label, shard.source.number
        known = self._verdicts.get(result.nodeid)
        skipped_itself = result.phase == "collect"
        if skipped_itself:
            self._skipped.setdefault(result.nodeid, result.message)
        bad, infrastructure = result.outcome.is_bad, result.cause is Cause.INFRASTRUCTURE
        has_run = result.outcome.has_run
        # Further results from one source are attempts of one run, and the later one decides.
        if known is None or known.label == label:
            attempt = max(known.attempts if known else 0, result.attempt)
            self._know(
                result.nodeid, _Verdict(label, number, attempt, label if bad else "", infrastructure, has_run)
            )
            yield event
            return
        is_rerun = number is not None and number == known.number
        if skipped_itself and not is_rerun:
            # Every shard collects all files; one entry says that this one skipped itself.
            return
        # Two results of one shard are refused without --reruns: the date of a stale artifact would decide otherwise.
        may_hide = not bad
        if is_rerun:
            # As for a retry, neither a skip nor a broken machine proves anything about a failure of the test.
            proves = result.outcome in _PASSES or (bad and not infrastructure)
            may_hide = not known.infrastructure and not proves
        # A run decides about its own failures: its retries are reported one by one.
        if known.bad and may_hide and known.failed_in != label:
            message = (
                f"{label} reports it as {result.outcome}, but it failed in {known.failed_in}, which counts"
            )
            yield Noted(at_s=event.at_s, nodeid=result.nodeid, message=message)
            return
        if known.has_run and not known.bad and not has_run and not is_rerun:
            # Another machine ran it, whichever of the two started first.
            return
        attempts = known.attempts + 1
        failed_in = ((not is_rerun and known.failed_in) or label) if bad else ""
        has_run = has_run or known.has_run
        verdict = _Verdict(known.label, known.number, attempts, failed_in, infrastructure, has_run)
        self._know(result.nodeid, verdict)
        yield replace(event, result=replace(result, attempt=attempts))

    def _know(self, nodeid: str, verdict: _Verdict) -> None:
        # Nearly all tests of a shard have equal verdicts, which share one object.
        self._verdicts[nodeid] = self._same.setdefault(verdict, verdict)

    def _missing(self) -> Iterator[AnyEvent]:
        reported = {source.number for source in self._sources}
        copies = find_copies(self._plan, self._sources) if self._plan else ()
        for shards in zip(*(copy.shards for copy in copies), strict=True):
            for tests in zip(*(shard.tests for shard in shards), strict=True):
                # A shard reports a test by its masked name if the name contains a secret.
                names = [test.nodeid for test in tests]
                if any(name in self._verdicts for name in names):
                    continue
                why = next((self._why_skipped(name) for name in names if name in self._vanished), None)
                # The last copy is a masked one, if there is any: a report must not name the secret.
                test, at_s = tests[-1], self._last_at_s
                if why is not None:
                    result = TestResult(
                        nodeid=test.nodeid,
                        outcome=Outcome.SKIPPED,
                        phase="collect",
                        message=why,
                        started_at_s=at_s,
                    )
                    yield from self._without_run(test, result)
                elif self._vanished.isdisjoint(names):
                    reason = _why_missing(shards[0], reported=shards[0].number in reported)
                    yield from self._without_run(test, spoiled(test.nodeid, reason, at_s=at_s))
        owed = [number for number in range(1, self._expected_shards + 1) if number not in reported]
        # Runs without a plan have no numbers.
        unnumbered = sum(source.number is None for source in self._sources)
        for number in owed[unnumbered:] if not self._plan else ():
            message = f"shard {number} of {self._expected_shards} never reported; see the log of its job"
            self._ends.add(f"shard {number}", ShardEnd(ExitCode.INFRASTRUCTURE, message))
            yield CollectionFailed(at_s=self._last_at_s, nodeid=f"shard {number}", message=message)

    def _why_skipped(self, nodeid: str) -> str | None:
        """Return the reason of the file, class or folder of a test that skipped itself; None without one."""
        return next((why for name, why in self._skipped.items() if is_inside(nodeid, name)), None)

    def _without_run(self, test: TestCase, result: TestResult) -> Iterator[AnyEvent]:
        """Add a planned test that no shard has run."""
        infrastructure = result.cause is Cause.INFRASTRUCTURE
        failed_in = "no shard" if result.outcome.is_bad else ""
        self._know(test.nodeid, _Verdict("", None, 1, failed_in, infrastructure, has_run=False))
        yield TestCollected(at_s=self._last_at_s, test=test)
        yield TestFinished(at_s=self._last_at_s, result=result)


class _ShardStream:
    """Events of one shard, completed, with world ids, slots and logs renamed to be unique in the merged run."""

    def __init__(self, source: ShardSource, into: Path) -> None:
        self.source = source
        self.has_concluded = False
        self.has_spans = False
        """Whether it has yielded the spans of shards that an earlier merge had joined."""
        # The part of a name before the slash is the label of a shard.
        self._prefix = f"{source.label}{'.' if source.is_merged else '/'}"
        self.is_uncollected = False
        started = source.started
        self.span = ShardSpan(
            shard=source.number,
            run_id=started.run_id if started else "",
            directory=os.path.relpath(source.directory, into),
            hardware=started.hardware if started else Hardware(cpus=0),
            slots=started.slots if started else 0,
            started_at_s=started.at_s if started else 0.0,
            ended_at_s=started.at_s if started else 0.0,
            exit_code=ExitCode.INTERNAL,
            reason=DIED_EARLY,
            label=source.label,
            cpu_slots=started.cpu_slots if started else 0,
        )
        self._logs = ShardLogs(source, into)
        self._same: dict[object, object] = {}
        """Repeated equal values, kept once. That saves a third of the memory of a large merge."""
        self._open: dict[str, TestStarted | None] = {}
        """Owed tests: node id -> the event that started it, if any."""

    @property
    def end(self) -> ShardEnd:
        """End of the shard, once its events have been read."""
        return ShardEnd(self.span.exit_code, self.span.reason, self.has_concluded, self.is_uncollected)

    def events(self) -> Iterator[AnyEvent]:
        """Yield the events; then ``span`` has the end of the shard."""
        at_s, ended = self.span.started_at_s, None
        for event in self.source.events():
            at_s = max(at_s, event.at_s)
            if isinstance(event, RunFinished):
                ended = event
            yield from self._renamed(event)
        reason = ended.reason if ended else DIED_EARLY
        self.has_concluded = ended is not None
        code = ended.exit_code if ended else int(ExitCode.INTERNAL)
        self.span = replace(self.span, ended_at_s=at_s, exit_code=code, reason=reason)
        yield from self._unfinished(at_s, reason or "it ended")
        self._logs.close()
        if self._logs.missing:
            text = f"{self.source.label}: {self._logs.missing} rank logs are missing or are not regular files"
            yield Noted(at_s=at_s, message=text)

    def _renamed(self, event: AnyEvent) -> Iterator[AnyEvent]:
        # RunStarted and RunFinished have no case: the merged run has its own.
        label, prefix = self.source.label, self._prefix
        match event:
            case TestCollected(test=test):
                self._open.setdefault(test.nodeid, None)
                # The decoder makes another string for the node id in each event of a test.
                self._same[test.nodeid] = test.nodeid
                same = {
                    name: self._once(getattr(test, name)) for name in ("file", "classname", "suite", "world")
                }
                yield replace(event, test=replace(test, **same))
            case TestStarted(nodeid=nodeid):
                self._open[nodeid] = event
            case TestFinished(result=result):
                self._open.pop(result.nodeid, None)
                yield replace(event, result=self._moved(result))
            case WorldStarted():
                slots = self._once(tuple(f"{prefix}{slot}" for slot in event.slots))
                world_id = self._once(f"{prefix}{event.world_id}")
                yield replace(event, world_id=world_id, slots=slots, shape=self._once(event.shape))
            case WorldEnded():
                yield replace(event, world_id=self._once(f"{prefix}{event.world_id}"))
            case Noted(message=message):
                yield replace(event, message=f"{label}: {message}")
            case ShardJoined(shard=span) if self.source.is_merged:
                self.has_spans = True
                directory = os.path.normpath(f"{self.span.directory}/{span.directory}")
                yield replace(event, shard=replace(span, label=f"{prefix}{span.label}", directory=directory))
            case CollectionFailed():
                self.is_uncollected = True
                yield event

    def _moved(self, result: TestResult) -> TestResult:
        ranks = tuple(self._logs.moved(rank) for rank in result.ranks)
        world_id = self._once(f"{self._prefix}{result.world_id}") if result.world_id else ""
        return replace(result, nodeid=self._once(result.nodeid), ranks=ranks, world_id=world_id)

    def _once(self, value: T) -> T:
        return cast("T", self._same.setdefault(value, value))

    def _unfinished(self, at_s: float, reason: str) -> Iterator[AnyEvent]:
        for nodeid, started in self._open.items():
            when = f"{self.source.label} ended ({reason})"
            yield TestFinished(at_s=at_s, result=unfinished(nodeid, started, when, at_s=at_s))


def _why_missing(shard: Shard, *, reported: bool) -> str:
    if reported:
        return f"shard {shard.number} ({shard.name}) reported, but not this test, which is in its plan"
    return f"shard {shard.number} ({shard.name}) never reported; see the log of its job"


def _all_hardware(machines: Sequence[Hardware]) -> Hardware:
    first = machines[0] if machines else Hardware(cpus=0)
    return replace(
        first,
        cpus=sum(machine.cpus for machine in machines),
        gpus=tuple(gpu for machine in machines for gpu in machine.gpus),
    )
