"""Timeline of a run: which test occupied which slot at what time, independent of the drawing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, takewhile

from disttest.model import TestResult
from disttest.plugins.costs.makespan import least_makespan_s
from disttest.reports import aggregates
from disttest.reports.text import duration
from disttest.results.fold import RunResult, TestOutcome, WorldSpan

CONTROLLER = "controller"
"""Lane of ordinary tests, which run in the controller and hold no slot."""
MAX_LANES_IN_TEXT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One attempt of a test on its slots; times in seconds from the start of the run."""

    test: int
    """Index in ``RunResult.tests``."""
    attempt: int
    kind: str
    """Kind of the attempt's outcome, as in :class:`aggregates.Tally`."""
    lanes: tuple[int, ...]
    """Indices in ``Timeline.slots``."""
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Lanes and their content."""

    slots: tuple[str, ...]
    bars: tuple[Bar, ...]
    worlds: tuple[tuple[tuple[int, ...], float, float], ...]
    """Lanes, start and end of each world; a world also needs time to start and to end."""
    makespan_s: float
    """Seconds from the start of the run to the end of the last test or world."""
    lower_bound_s: float
    """No schedule of these worlds on these slots can be shorter."""

    @cached_property
    def busy_s(self) -> tuple[float, ...]:
        """Seconds in which a world or a test held each lane."""
        held: dict[tuple[int, ...], list[tuple[float, float]]] = defaultdict(list)
        for lanes, start_s, end_s in (
            *((bar.lanes, bar.start_s, bar.end_s) for bar in self.bars),
            *self.worlds,
        ):
            held[lanes].append((start_s, end_s))
        spans: list[list[tuple[float, float]]] = [[] for _ in self.slots]
        for lanes, times in held.items():
            united = tuple(_union(times))
            for lane in lanes:
                spans[lane].extend(united)
        return tuple(sum(end_s - start_s for start_s, end_s in _union(each)) for each in spans)


def build_timeline(run: RunResult) -> Timeline:
    """Lay out a run. Attempts without a time (skips, tests that never started) are left out."""
    names = {slot for world in run.worlds for slot in world.slots}
    ids = {world.world_id for world in run.worlds}
    if any(attempt.world_id not in ids for _, _, attempt in _timed(run)):
        names.add(CONTROLLER)
    slots = tuple(sorted(names, key=_natural))
    lane = {slot: index for index, slot in enumerate(slots)}

    @cache
    def lanes(held: tuple[str, ...]) -> tuple[int, ...]:
        # One object for all worlds on the same slots: a large run has a hundred thousand worlds.
        return tuple(sorted(lane[slot] for slot in held))

    held = {world.world_id: lanes(world.slots) for world in run.worlds}
    bars = tuple(_bar(run, index, test, attempt, held, lane) for index, test, attempt in _timed(run))
    spans = tuple((lanes(world.slots), *_span(run, world)) for world in run.worlds)
    ends = chain((bar.end_s for bar in bars), (end for _, _, end in spans))
    return Timeline(
        slots=slots,
        bars=bars,
        worlds=spans,
        makespan_s=max(ends, default=0.0),
        lower_bound_s=least_makespan_s(run),
    )


def _timed(run: RunResult) -> Iterator[tuple[int, TestOutcome, TestResult]]:
    for index, test in enumerate(run.tests):
        for attempt in test.attempts:
            if attempt.duration_s > 0 and attempt.started_at_s > 0:
                yield index, test, attempt


def _bar(
    run: RunResult,
    index: int,
    test: TestOutcome,
    attempt: TestResult,
    held: dict[str, tuple[int, ...]],
    lane: dict[str, int],
) -> Bar:
    start_s = max(0.0, attempt.started_at_s - run.started_at_s)
    whole = attempt is test.final
    return Bar(
        test=index,
        attempt=attempt.attempt,
        kind=aggregates.classify(test if whole else TestOutcome(test=test.test, attempts=(attempt,))),
        # Ordinary tests have no world, and a journal that was cut may lack the start of a world.
        lanes=held[attempt.world_id] if attempt.world_id in held else (lane[CONTROLLER],),
        start_s=start_s,
        end_s=start_s + attempt.duration_s,
    )


def _span(run: RunResult, world: WorldSpan) -> tuple[float, float]:
    start_s = max(0.0, world.started_at_s - run.started_at_s)
    ended_at_s = world.ended_at_s if world.ended_at_s is not None else run.ended_at_s
    return start_s, max(start_s, ended_at_s - run.started_at_s)


def _union(spans: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    current: tuple[float, float] | None = None
    for start, end in sorted(spans):
        if current is None or start > current[1]:
            if current:
                yield current
            current = (start, end)
        else:
            current = (current[0], max(current[1], end))
    if current:
        yield current


def _natural(slot: str) -> tuple[bool, str, int, str]:
    """Sort key that puts ``gpu:10`` after ``gpu:9`` and the controller last."""
    name = slot.rstrip("0123456789")
    number = slot[len(name) :].lstrip("0")
    # By length, not as an integer: a forged name may end in more digits than Python converts.
    # https://github.com/python/cpython/issues/95778
    return slot == CONTROLLER, name, len(number) if len(slot) > len(name) else -1, number


GLYPHS = {
    "passed": "█",
    "xfailed": "█",
    "flaky": "▒",
    "skipped": "░",
    "failed": "×",
    "infrastructure": "!",
    "not_run": "·",
}


def render_lanes(timeline: Timeline, *, width: int) -> str:
    """Return one line of text per slot, with its share of busy time; the last line explains the marks."""
    column_s = timeline.makespan_s / width or 1.0
    marks: dict[tuple[int, int], set[str]] = defaultdict(set)
    for bar in timeline.bars:
        # A bar that ends exactly at a column border does not enter the next column.
        first, last = int(bar.start_s / column_s), int(max(bar.start_s, bar.end_s - 1e-9) / column_s)
        for column in range(first, min(last, width - 1) + 1):
            for lane in takewhile(MAX_LANES_IN_TEXT.__gt__, bar.lanes):
                marks[lane, column].add(bar.kind)
    longest = max(map(len, timeline.slots))
    lines = [
        f"{slot:>{longest}} {''.join(_glyph(marks[lane, column]) for column in range(width))} "
        f"{_share(timeline.busy_s[lane], timeline.makespan_s)}"
        for lane, slot in enumerate(timeline.slots[:MAX_LANES_IN_TEXT])
    ]
    if len(timeline.slots) > MAX_LANES_IN_TEXT:
        lines.append(f"… and {len(timeline.slots) - MAX_LANES_IN_TEXT:,} more slots")
    lines.append(f"{'':>{longest}} 0 s {duration(timeline.makespan_s):>{width - 4}}")
    lines.append(
        f"{'':>{longest}} × failed  ! infrastructure  ▒ flaky  █ passed  · idle; "
        f"no schedule takes less than {duration(timeline.lower_bound_s)}"
    )
    return "\n".join(lines)


def _glyph(kinds: set[str]) -> str:
    return next((GLYPHS[kind] for kind in aggregates.KINDS if kind in kinds), "·")


def _share(part_s: float, whole_s: float) -> str:
    return f"{100 * part_s / whole_s:3.0f} %" if whole_s else ""
