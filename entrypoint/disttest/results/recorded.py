"""Warnings and properties of one attempt, joined over its ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from disttest.model import FactKind, Recorded, RecordedFact, RecordedWarning, TestResult, rank_names

Ranks = tuple[int, ...]
"""Ranks that recorded an entry; empty for a process that is not a rank."""


def warnings_by_rank(result: TestResult) -> dict[RecordedWarning, Ranks]:
    """Map each warning to the ranks that emitted it."""
    found: dict[RecordedWarning, Ranks] = {}
    for ranks, recorded in _sources(result):
        for warning in recorded.warnings:
            found[warning] = (*found.get(warning, ()), *ranks)
    return found


def warning_text(warning: RecordedWarning, ranks: Ranks) -> str:
    """Format a warning after the ranks that emitted it."""
    return f"{rank_names(ranks)}: {warning.message}" if ranks else warning.message


def warning_lines(result: TestResult) -> Iterator[str]:
    """Yield one line for each warning: ``warning: rank 1: UserWarning: text (test_step.py:3)``."""
    for warning, ranks in warnings_by_rank(result).items():
        whose = f"{rank_names(ranks)}: " if ranks else ""
        place = f" ({warning.file}:{warning.line})" if warning.file else ""
        yield f"warning: {whose}{warning.category.rpartition('.')[2]}: {warning.message}{place}"


def facts_of(result: TestResult, kind: FactKind) -> dict[str, str]:
    """Map names of one kind to values; if ranks differ, the rank is part of the name: ``loss[rank 1]``."""
    found: dict[RecordedFact, Ranks] = {}
    sources = [*_sources(result)]
    for ranks, recorded in sources:
        for fact in recorded.facts:
            if fact.kind is kind:
                found[fact] = (*found.get(fact, ()), *ranks)
    # A property that all ranks recorded alike needs no rank in its name.
    everyone = tuple(rank for ranks, _ in sources for rank in ranks)
    facts: dict[str, str] = {}
    for fact, ranks in found.items():
        if not ranks or ranks == everyone:
            facts[fact.name] = fact.value
        for rank in ranks if ranks != everyone else ():
            facts[f"{fact.name}[rank {rank}]"] = fact.value
    return facts


def fact_lines(result: TestResult) -> Iterator[str]:
    """Yield one line for each property: ``property loss[rank 1]: 1.5``."""
    for kind in FactKind:
        yield from (f"{kind} {name}: {value}" for name, value in facts_of(result, kind).items())


def has_records(result: TestResult) -> bool:
    """Whether any process recorded an entry."""
    return any(recorded != Recorded() for _, recorded in _sources(result))


def _sources(result: TestResult) -> Iterator[tuple[Ranks, Recorded]]:
    yield (), result.by_main
    for record in result.ranks:
        # The main process of a class has a record, too, with a negative rank; its entries are in `by_main`.
        if record.rank >= 0:
            yield (record.rank,), record.recorded
