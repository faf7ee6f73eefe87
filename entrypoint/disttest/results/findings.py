"""Findings and sections that plugins add to a result, and their text in reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from disttest.model import Cause, Outcome, PluginFinding, Section, TestResult

MOST_FINDINGS = 20
"""Findings of one finder in one test; a loop that goes wrong in a hundred ways needs no more."""


def with_findings(
    result: TestResult, findings: Sequence[PluginFinding], notes: Iterable[str] = ()
) -> TestResult:
    """A result with further findings; those that fail a test make it a failure.

    Args:
        result: of a test that has passed.
        findings: of one finder.
        notes: what it could not look at.
    """
    kept, more = findings[:MOST_FINDINGS], len(findings) - MOST_FINDINGS
    notes = [*notes, *([f"{more} more findings of {findings[0].source}"] if more > 0 else [])]
    result = msgspec.structs.replace(
        result, findings=(*result.findings, *kept), notes=(*result.notes, *notes)
    )
    failing = [finding for finding in kept if finding.fails]
    if not failing or result.outcome.is_bad:
        return result
    return msgspec.structs.replace(
        result,
        outcome=Outcome.FAILED,
        cause=Cause.TEST,
        message=f"{failing[0].source}: {failing[0].message}",
    )


def with_section(result: TestResult, name: str, section: Section) -> TestResult:
    """A result with the section of a plugin; it replaces one of this name.

    Args:
        result: of a test.
        name: of the plugin.
        section: what the reports show of it.

    Raises:
        TypeError, msgspec.ValidationError, UnicodeEncodeError: the section is no text, or its data is no JSON.
    """
    checked = msgspec.json.decode(msgspec.json.encode(section), type=Section)  # it travels as JSON
    return msgspec.structs.replace(result, sections={**result.sections, name: checked})


def describe_plugins(result: TestResult) -> Iterator[str]:
    """Findings and sections of plugins as text; nothing if there are none."""
    yield from describe_findings(result.findings)
    for section in result.sections.values():
        if section.title or section.lines:
            yield section.title
            yield from (f"  {line}" for line in section.lines)


def describe_findings(findings: Iterable[PluginFinding]) -> Iterator[str]:
    """Each in three lines: what it is, what comes of it, what to do."""
    for finding in findings:
        yield f"{finding.source}: {finding.message}"
        yield f"  effect: {finding.effect}"
        yield f"  what to do: {finding.advice}"
