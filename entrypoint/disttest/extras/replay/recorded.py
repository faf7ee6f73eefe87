"""Ranks whose recording was kept, and the command that replays one of them. Pure functions."""

from __future__ import annotations

from typing import Any

from disttest.model import Section, TestCase, TestResult
from disttest.results.findings import with_section
from disttest.results.repeat import Run, quote

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
    rank = result.culprit if result.culprit in recorded else recorded[0]
    results = run.invocation.options.get("results")
    words = ["disttest", "replay", *([results] if results else []), test.nodeid, "--rank", str(rank)]
    return " ".join(map(quote, words))


def move_recorded(event: dict[str, Any]) -> None:
    """Move the recorded ranks of an event of version 0.1, which had them next to the fields of the core."""
    result = event.get("result")
    if isinstance(result, dict) and (ranks := result.pop("recorded", None)):
        result.setdefault("sections", {})[NAME] = {"data": ranks}
