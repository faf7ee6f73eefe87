"""Findings and sections that plugins add to a result, and their text in reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from disttest.model import Cause, Outcome, PluginFinding, Section, TestResult

MOST_FINDINGS = 20
"""Maximum number of findings of one source in one test; a loop repeats the same mistake many times."""


def with_findings(
    result: TestResult, findings: Sequence[PluginFinding], notes: Iterable[str] = ()
) -> TestResult:
    """Add findings to a result; those that fail the test turn it into a failure.

    Args:
        result: result of a test that has passed.
        findings: findings of one source.
        notes: parts of the test that the source could not examine.
    """
    kept, more = findings[:MOST_FINDINGS], len(findings) - MOST_FINDINGS
    notes = [*notes, *([f"{more} more findings of {findings[0].source}"] if more > 0 else [])]
    result = msgspec.structs.replace(
        result, findings=(*result.findings, *kept), notes=(*result.notes, *notes)
    )
    failing = [finding for finding in kept if finding.fails]
    # A failure of a rank keeps its own message; reports list the findings below it.
    if not failing or result.outcome.is_bad:
        return result
    return msgspec.structs.replace(
        result,
        outcome=Outcome.FAILED,
        cause=Cause.TEST,
        message=f"{failing[0].source}: {failing[0].message}",
    )


def with_section(result: TestResult, name: str, section: Section) -> TestResult:
    """Add the section of a plugin to a result, replacing one of the same name.

    Args:
        result: result of a test.
        name: name of the plugin.
        section: content for the reports.

    Raises:
        TypeError, msgspec.ValidationError, UnicodeEncodeError: the section is not text, or its data is not JSON.
    """
    # A section travels as JSON, so its content is checked by encoding it.
    checked = msgspec.json.decode(msgspec.json.encode(section), type=Section)
    return msgspec.structs.replace(result, sections={**result.sections, name: checked})


def describe_plugins(result: TestResult) -> Iterator[str]:
    """Yield findings and sections of plugins as text; nothing if there are none."""
    yield from describe_findings(result.findings)
    for section in result.sections.values():
        if section.title or section.lines:
            yield section.title
            yield from (f"  {line}" for line in section.lines)


def describe_findings(findings: Iterable[PluginFinding]) -> Iterator[str]:
    """Yield three lines for each finding: the fact, its effect, the advice."""
    for finding in findings:
        yield f"{finding.source}: {finding.message}"
        yield f"  effect: {finding.effect}"
        yield f"  what to do: {finding.advice}"
