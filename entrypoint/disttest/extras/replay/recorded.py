"""The ranks of a test whose recording was kept, and the command that replays one of them. Pure."""

from __future__ import annotations

from typing import Any

from disttest.model import Section, TestCase, TestResult
from disttest.results.findings import with_section
from disttest.results.repeat import Run, quote

NAME = "replay"
"""Of the plugin."""


def with_recorded(result: TestResult, ranks: tuple[int, ...]) -> TestResult:
    """Name the ranks whose recording was kept."""
    return with_section(result, NAME, Section(data=list(ranks))) if ranks else result


def recorded_ranks(result: TestResult) -> tuple[int, ...]:
    """Return the ranks whose recording was kept."""
    section = result.sections.get(NAME)
    return () if section is None else tuple(section.data)


def replay_command(test: TestCase, result: TestResult, run: Run) -> str:
    """The command that runs the culprit alone, else the first rank; empty where no recording of it was kept."""
    recorded = recorded_ranks(result)
    if not recorded:
        return ""
    rank = result.culprit if result.culprit in recorded else recorded[0]
    results = run.invocation.options.get("results")
    words = ["disttest", "replay", *([results] if results else []), test.nodeid, "--rank", str(rank)]
    return " ".join(map(quote, words))


def move_recorded(event: dict[str, Any]) -> None:
    """Give an event of version 0.1, which had the ranks beside the fields of the core, its present form."""
    result = event.get("result")
    if isinstance(result, dict) and (ranks := result.pop("recorded", None)):
        result.setdefault("sections", {})[NAME] = {"data": ranks}
