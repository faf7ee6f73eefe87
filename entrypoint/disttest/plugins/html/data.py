"""The data of the page: short rows for all tests, and full details for those that a reader is likely to open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from disttest.model import (
    Collective,
    Edge,
    PluginFinding,
    RankRecord,
    Section,
    TestResult,
    WaitGraph,
    rank_name,
)
from disttest.plugins.costs.timeline import build_timeline
from disttest.reports import aggregates
from disttest.reports.aggregates import KINDS
from disttest.reports.location import Repository, locate
from disttest.reports.log_excerpts import LogFolder
from disttest.reports.past_runs import PastRun, words_of_streak
from disttest.reports.text import clean, duration, one_line, shorten
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.narrative import how_ended, how_failed, without_stacks
from disttest.results.recorded import fact_lines, has_records, warning_lines
from disttest.results.repeat import further_commands, repeat_command

MAX_TESTS = 20_000
"""Number of tests on the page. More would take too long to load, and too much memory to write."""
MESSAGES_TOTAL = 500_000
"""Characters of all messages in the list of tests."""
DETAILS_TOTAL = 1_200_000
"""Characters of all failure texts together."""
LOGS_TOTAL = 1_500_000
"""Bytes of all log excerpts together."""
FEWEST = 300
"""Smallest useful size of an excerpt in bytes."""
MAX_OPENED = 1_000
"""Number of tests with full details. Others have only their message."""


@dataclass(frozen=True, kw_only=True)
class _TextBudget:
    details: int
    log: int


def choose_tests(run: RunResult, most: int = MAX_TESTS) -> RunResult:
    """Return the run with the tests that fit on the page: failures first, then the longest."""
    if len(run.tests) <= most:
        return run
    kinds = {kind: number for number, kind in enumerate(KINDS)}
    longest_s = max(test.final.duration_s for test in run.tests) + 1.0
    # One number each: tuples of two would take as much memory as the rows.
    ranks = [kinds[aggregates.classify(test)] * longest_s - test.final.duration_s for test in run.tests]
    order = sorted(range(len(run.tests)), key=ranks.__getitem__)
    return msgspec.structs.replace(run, tests=tuple(run.tests[index] for index in sorted(order[:most])))


def page_data(run: RunResult, history: Sequence[PastRun] = (), *, whole: RunResult) -> dict[str, Any]:
    """Return the data of the lists and the timeline: one short row for each test.

    Args:
        run: the run, with the tests of the page.
        history: earlier runs, the oldest first.
        whole: the run with all its tests, which occupied slots.
    """
    suites = list(dict.fromkeys(test.test.suite for test in run.tests))
    shapes = sorted({_shape_key(test) for test in run.tests})
    budget = max(40, min(300, MESSAGES_TOTAL // max(1, sum(bool(test.final.message) for test in run.tests))))
    return {
        "kinds": KINDS,
        "suites": [one_line(suite) for suite in suites],
        "shapes": [name for _, name in shapes],
        "tests": [
            [
                one_line(test.test.nodeid, 6000),
                suites.index(test.test.suite),
                shapes.index(_shape_key(test)),
                KINDS.index(aggregates.classify(test)),
                round(max(0.0, test.final.duration_s), 4),
                one_line(test.final.message, budget),
                len(test.attempts),
                _log_folder(test),
                len(test.final.ranks),
            ]
            for test in run.tests
        ],
        "timeline": _timeline(run, whole),
        "history": _history(run, history),
        "streaks": _streaks(run, history),
    }


def page_details(run: RunResult, logs: LogFolder) -> dict[str, Any]:
    """Return the full details of tests worth opening, by index of the test."""
    opened = [(index, test) for index, test in enumerate(run.tests) if _is_worth_opening(test)]
    opened.sort(key=lambda entry: KINDS.index(aggregates.classify(entry[1])))
    # After the sort by kind, so that failures are kept and notes on green tests go first.
    opened = opened[:MAX_OPENED]
    ranks = sum(len(attempt.ranks) for _, test in opened for attempt in test.attempts)
    budget = _TextBudget(
        details=min(20_000, DETAILS_TOTAL // max(1, len(opened))),
        log=min(24_000, LOGS_TOTAL // max(1, ranks)),
    )
    return {str(index): _details(test, run, logs, budget) for index, test in opened}


_ONE_LINE = 100
"""Characters of a bold headline that fit into a line of a card."""


def headline_of(message: str) -> tuple[str, str]:
    """Split a finding into a headline that fits into a line, at the end of a clause if there is one, and the rest."""
    if len(message) <= _ONE_LINE:
        return message, ""
    for ends in ((": ", "; "), (", ", " (")):
        cut = max(message.rfind(end, 12, _ONE_LINE) for end in ends)
        if cut > 0:
            return message[:cut], message[cut:].lstrip(":;, ")
    return f"{message[: _ONE_LINE - 1]}…", f"…{message[_ONE_LINE - 1 :]}"


def _shape_key(test: TestOutcome) -> tuple[int, str]:
    shape = test.test.world
    return (shape.size, str(shape)) if shape else (0, aggregates.ORDINARY)


def _is_worth_opening(test: TestOutcome) -> bool:
    told = any(map(_is_shown, test.attempts))
    return test.final.outcome.is_bad or len(test.attempts) > 1 or told


def _is_shown(attempt: TestResult) -> bool:
    return bool(attempt.notes or attempt.findings or attempt.sections or has_records(attempt))


def _log_folder(test: TestOutcome) -> str:
    """Return the folder of the final attempt's logs, if they are in their usual place."""
    folder = f"{test.test.log_folder(test.final.attempt)}/"
    usual = test.final.ranks and all(rank.log == f"{folder}rank{rank.rank}.log" for rank in test.final.ranks)
    return folder if usual else ""


def _timeline(run: RunResult, whole: RunResult) -> dict[str, Any]:
    timeline = build_timeline(whole)
    rows = {test.test.nodeid: row for row, test in enumerate(run.tests)}
    # Tests that the page leaves out have no row and no bar, but they kept their slots busy.
    row_of = [rows.get(test.test.nodeid) for test in whole.tests]
    held = [*(bar.lanes for bar in timeline.bars), *(lanes for lanes, _, _ in timeline.worlds)]
    # Bars refer to their lanes by number: 20,000 bars share a few combinations.
    groups = list(dict.fromkeys(held))
    number = {lanes: index for index, lanes in enumerate(groups)}
    return {
        "slots": [one_line(slot, 40) for slot in timeline.slots],
        "busy": [round(busy_s, 3) for busy_s in timeline.busy_s],
        "lanes": groups,
        "bars": [
            (
                row_of[bar.test],
                bar.attempt,
                KINDS.index(bar.kind),
                round(bar.start_s, 4),
                round(bar.end_s, 4),
                number[bar.lanes],
            )
            for bar in timeline.bars
            if row_of[bar.test] is not None
        ],
        "worlds": [(number[lanes], round(start, 4), round(end, 4)) for lanes, start, end in timeline.worlds],
        "makespan": round(timeline.makespan_s, 4),
        "bound": round(timeline.lower_bound_s, 4),
    }


def _history(run: RunResult, earlier: Sequence[PastRun]) -> dict[str, list[int]]:
    """Return a test's outcome in each earlier run, by index; only for tests that were not always green."""
    found: dict[str, list[int]] = {}
    for index, test in enumerate(run.tests):
        kinds = [past.kinds.get(test.test.nodeid, "") for past in earlier]
        if set(kinds) - {"passed", ""} or (earlier and test.final.outcome.is_bad):
            found[str(index)] = [KINDS.index(kind) if kind else -1 for kind in kinds]
    return found


def _streaks(run: RunResult, earlier: Sequence[PastRun]) -> dict[str, str]:
    """Return the run in which a test's failures began, by index of the failed test."""
    # Other branches may have been red for other reasons. A results directory says no branch.
    branch = run.invocation.data.get("history", {}).get("branch", "")
    earlier = [past for past in earlier if not branch or past.branch in ("", branch)]
    words = {
        str(index): words_of_streak(
            [(past.kinds.get(test.test.nodeid, ""), past.name) for past in earlier], is_red=True
        )
        for index, test in enumerate(run.tests)
        if test.final.outcome.is_bad
    }
    return {index: said for index, said in words.items() if said}


def _details(test: TestOutcome, run: RunResult, logs: LogFolder, budget: _TextBudget) -> dict[str, Any]:
    place = locate(test, Repository.of(run)) if test.final.outcome.is_bad else None
    return {
        "commands": [
            clean(repeat_command(test.test, run, test.final.after)),
            *map(clean, further_commands(test.test, test.final, run).values()),
        ],
        "place": str(place or ""),
        "fault": how_failed(test.final) if test.final.outcome.is_bad else "",
        "attempts": [_attempt(attempt, logs, budget) for attempt in test.attempts],
    }


def _attempt(result: TestResult, logs: LogFolder, budget: _TextBudget) -> dict[str, Any]:
    head, rest = headline_of(
        aggregates.finding(result) if result.outcome.is_bad else one_line(result.message)
    )
    return {
        "attempt": result.attempt,
        "outcome": str(result.outcome),
        "message": head,
        **({"rest": rest} if rest else {}),
        "who": aggregates.who(result),
        "phase": one_line(result.phase),
        "culprit": result.culprit,
        "victims": result.victims,
        "duration": round(max(0.0, result.duration_s), 4),
        "text": shorten("\n\n".join(aggregates.evidence(result)), budget.details),
        "notes": [one_line(note) for note in (*result.notes, *warning_lines(result), *fact_lines(result))],
        "collectives": collective_table(result),
        "findings": [finding_data(finding) for finding in result.findings],
        "sections": [
            section_data(section) for section in result.sections.values() if section.title or section.lines
        ],
        "waits": [waits_data(section.waits) for section in result.sections.values() if section.waits],
        "ranks": [
            dict(_rank(rank, logs, budget)) | {"ticks": ticks(rank, result.started_at_s)}
            for rank in result.ranks
        ],
    }


def _rank(rank: RankRecord, logs: LogFolder, budget: _TextBudget) -> Iterator[tuple[str, Any]]:
    yield "rank", rank.rank
    yield "name", rank_name(rank.rank)
    yield "how", how_ended(rank)
    yield "phase", one_line(rank.phase)
    yield "message", one_line(rank.message)
    yield "failed", rank.failed_after_s
    yield "phases", {one_line(name): round(max(0.0, s), 4) for name, s in rank.durations_s.items()}
    yield "hung", rank.hung
    yield "stacks", shorten(clean(rank.all_stacks), budget.details)
    yield "log", clean(rank.log) if logs.path(rank.log) else ""
    if rank.log and not logs.path(rank.log):
        yield "missing", clean(rank.log)
    if budget.log >= FEWEST:
        excerpt = logs.excerpt(rank.log, head_bytes=budget.log // 4, tail_bytes=budget.log - budget.log // 4)
        yield "text", without_stacks(str(excerpt)).strip("\n") if excerpt else ""


MAX_ROWS = 60
MOST_CALLS = 2_000
"""Number of calls of one rank that are compared; torch's recorder keeps as many by default."""
_Key = tuple[str, int]


def collective_table(result: TestResult) -> dict[str, Any] | None:
    """Return names of ranks and rows of cells; None if no rank's recorder was read.

    The last :data:`MAX_ROWS` collectives, in the order in which they were first called.
    """
    if not any(rank.collectives for rank in result.ranks):
        return None
    # A hanging rank was asked, too, and an empty column for it is informative. The same holds for the culprit.
    ranks = [rank for rank in result.ranks if _was_asked(rank) or rank.rank == result.culprit]
    calls = {
        # Messages have numbers of a separate series, which would hide collectives of the same number.
        rank.rank: {(call.group, call.seq): call for call in rank.collectives[-MOST_CALLS:] if not call.p2p}
        for rank in ranks
        if _was_asked(rank)
    }
    first_s: dict[_Key, float] = {}
    for mine in calls.values():
        for key, call in mine.items():
            first_s[key] = min(call.at_s, first_s.get(key, call.at_s))
    order = sorted(first_s, key=lambda key: (first_s[key], key))
    parting = next((key for key in order if _parts(key, calls)), None)
    return {
        "ranks": [rank_name(rank.rank) for rank in ranks],
        "rows": [
            {
                "name": f"{one_line(key[0], 60)} #{key[1]}",
                "parts": key == parting,
                "cells": [*_cells(key, ranks, calls, result.started_at_s)],
            }
            for key in order[-MAX_ROWS:]
        ],
    }


def _was_asked(rank: RankRecord) -> bool:
    return bool(rank.collectives) or rank.hung


def _cells(
    key: _Key, ranks: Sequence[RankRecord], calls: Mapping[int, dict[_Key, Collective]], started_at_s: float
) -> Iterator[dict[str, Any] | None]:
    for rank in ranks:
        if rank.rank in calls:
            yield _cell(calls[rank.rank].get(key), started_at_s)
        else:
            yield {"unasked": how_ended(rank)}


def ticks(rank: RankRecord, started_at_s: float) -> list[tuple[float, bool]]:
    """Return when a rank called each collective, in seconds from the start, and whether it was complete."""
    return [(round(max(0.0, call.at_s - started_at_s), 4), call.done) for call in rank.collectives[-200:]]


def _parts(key: _Key, calls: Mapping[int, dict[_Key, Collective]]) -> bool:
    """Return whether the ranks diverge here: different operations, a missing rank, or a call that was not completed."""
    here = [mine[key] for mine in calls.values() if key in mine]
    # Groups of a DeviceMesh share a description: calls of other ranks at this number are those of another group.
    if len({(call.ranks, call.op) for call in here}) > len({call.ranks for call in here}):
        return True
    members = {rank for call in here for rank in call.ranks or calls}
    # A rank past this number has issued it: its recorder keeps only the last calls.
    missing = (key not in mine and not _is_past(key, mine) for rank, mine in calls.items() if rank in members)
    return any(missing) or not all(call.done for call in here)


def _is_past(key: _Key, mine: dict[_Key, Collective]) -> bool:
    return any(group == key[0] and seq > key[1] for group, seq in mine)


def _cell(call: Collective | None, started_at_s: float) -> dict[str, Any] | None:
    if call is None:
        return None
    return {
        "op": one_line(call.op, 60),
        "inputs": one_line(call.inputs, 80),
        "where": one_line(call.where, 120),
        "done": call.done,
        "at": round(max(0.0, call.at_s - started_at_s), 4),
    }


MOST_DRAWN = 16
"""Number of ranks in a graph. With more, the arrows hide each other and the list is clearer."""

_MOST_LINES = 200
"""Number of lines of a plugin's section. ``results.json`` has all of them."""


def section_data(section: Section) -> dict[str, Any]:
    """Return the data of a plugin's section in the report of one test."""
    return {
        "title": one_line(section.title, 300),
        "lines": [_indented(line) for line in section.lines[:_MOST_LINES]],
    }


def _indented(line: str) -> str:
    """Return a line of source or of a table with its spaces, which one_line would join."""
    text = clean(line).expandtabs().rstrip()
    indent = len(text) - len(text.lstrip(" "))
    return " " * min(indent, 40) + one_line(text, 2000)


def finding_data(finding: PluginFinding) -> dict[str, Any]:
    """Return the data of one finding, with the calls of its ranks in columns."""
    return {
        "title": one_line(f"{finding.finder}: {finding.kind}"),
        "message": one_line(finding.message, 4000),
        "effect": one_line(finding.effect, 2000),
        "advice": one_line(finding.advice, 2000),
        "fails": finding.fails,
        "orders": [
            {
                "name": rank_name(order.rank),
                "calls": [
                    {
                        "what": one_line(call.what, 300),
                        "where": one_line(call.where, 200),
                        "decides": call.decides,
                        "window": str(call.window or ""),
                        "same": call.same,
                    }
                    for call in order.calls
                ],
            }
            for order in finding.orders
        ],
    }


def waits_data(waits: WaitGraph) -> dict[str, Any]:
    """Return the data of the ranks and their waits. With too many ranks, none is drawn."""
    ranks = sorted({rank for edge in waits.edges for rank in (edge.rank, *edge.ranks)})
    drawn = ranks if len(ranks) <= MOST_DRAWN else []
    return {
        "nodes": [{"rank": rank, "finished": rank in waits.finished} for rank in drawn],
        "edges": [{"rank": edge.rank, "ranks": edge.ranks, "text": _sentence(edge)} for edge in waits.edges],
        "label": f"{len(drawn)} ranks, each with the ranks that it waits for; the list below is the same in words",
    }


def _sentence(edge: Edge) -> str:
    """Describe a wait: ``rank 0 waits in recv #1 from rank 1 at test_x.py:3 (1.2 s) for rank 1, which …``."""
    place = f" at {edge.where}" if edge.where else ""
    awaited = f" for {', '.join(map(rank_name, edge.ranks))}" if edge.ranks else ""
    reason = f", {edge.reason}" if edge.reason else ""
    waits = f"{rank_name(edge.rank)} waits in {edge.what}{place} ({duration(edge.since_s)})"
    return one_line(f"{waits}{awaited}{reason}", 1000)
