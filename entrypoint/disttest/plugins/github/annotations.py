"""Annotations of failures next to the code, as many as GitHub shows."""

from __future__ import annotations

from collections.abc import Iterator

from disttest.model import Cause
from disttest.plugins.github import commands
from disttest.reports import aggregates
from disttest.reports.aggregates import FailureGroup, Warned, warnings_of
from disttest.reports.location import Repository, locate
from disttest.reports.text import clean, count, one_line, shorten
from disttest.results.fold import CollectionError, RunResult, TestOutcome

NAMED = commands.MAX_ANNOTATIONS - 1
"""The last annotation counts the failures that are not shown."""


def render_annotations(run: RunResult) -> str:
    """Return workflow commands, one per line: nine errors and one that counts the rest, warnings likewise."""
    repository = Repository.of(run)
    errors = [*_errors(run, repository)]
    warnings = [*_warnings(run, repository)]
    lines = [*_capped("error", errors, "failure"), *_capped("warning", warnings, "warning")]
    return "".join(f"{line}\n" for line in lines)


def _capped(level: str, lines: list[str], noun: str) -> list[str]:
    # GitHub drops annotations of a step beyond this number without a message:
    # https://github.com/actions/toolkit/pull/734
    if len(lines) <= commands.MAX_ANNOTATIONS:
        return lines
    rest = count(len(lines) - NAMED, f"more {noun}")
    return [
        *lines[:NAMED],
        commands.annotation(level, f"{rest}: see the summary, report.html or junit.xml", title=rest),
    ]


def _errors(run: RunResult, repository: Repository) -> Iterator[str]:
    for error in run.collection_errors:
        yield _not_collected(error, repository)
    for group in aggregates.failure_groups(run):
        yield _failure(group, repository)
    if run.flaky_fails:
        yield from (_flaky(test, repository, "error") for test in run.flaky)
    if run.reason and not run.bad:
        yield commands.annotation("error", one_line(run.reason), title="disttest: the run is red")


def _not_collected(error: CollectionError, repository: Repository) -> str:
    file = repository.relative(error.nodeid.partition("::")[0])
    title = one_line(f"{error.nodeid} could not be collected", 200)
    return commands.annotation("error", shorten(clean(error.message), 3000), title=title, file=file, line=1)


def _failure(group: FailureGroup, repository: Repository) -> str:
    test = group.first
    machine = test.final.cause is Cause.INFRASTRUCTURE
    # A broken machine has no line in the user's code.
    place = None if machine else locate(test, repository)
    title = _title(test) if len(group.tests) == 1 else f"{count(len(group.tests), 'test')} failed alike"
    if machine:
        title = f"infrastructure: {title}"
    words = [group.message, aggregates.who(test.final), f"repeat: {group.repeat}"]
    return commands.annotation(
        "error",
        "\n".join(word for word in words if word),
        title=title,
        file=place.file if place else None,
        line=place.line if place else None,
    )


def _title(test: TestOutcome) -> str:
    return one_line(test.test.name or test.test.nodeid, 200)


def _warnings(run: RunResult, repository: Repository) -> Iterator[str]:
    if not run.flaky_fails:
        yield from (_flaky(test, repository, "warning") for test in run.flaky)
    yield from (_warned(warned, repository) for warned in warnings_of(run))
    for test in run.tests:
        leaks = sorted({leak for rank in test.final.ranks for leak in rank.leaks})
        if leaks:
            file = repository.relative(test.test.file)
            message = f"left behind: {one_line(', '.join(leaks), 1000)}"
            title = f"{_title(test)} leaks"
            yield commands.annotation("warning", message, title=title, file=file, line=max(1, test.test.line))


def _warned(warned: Warned, repository: Repository) -> str:
    finding, place = warned.finding, warned.place(repository)
    words = (finding.message, finding.effect, finding.advice, f"in {warned.whose}")
    return commands.annotation(
        "warning",
        "\n".join(map(one_line, words)),
        title=warned.title,
        file=place.file if place else None,
        line=place.line if place else None,
    )


def _flaky(test: TestOutcome, repository: Repository, level: str) -> str:
    first = test.first_bad
    message = f"passed at attempt {test.final.attempt}; attempt {first.attempt}: {aggregates.finding(first)}"
    file = repository.relative(test.test.file)
    return commands.annotation(
        level, message, title=f"{_title(test)} is flaky", file=file, line=max(1, test.test.line)
    )
