"""The hooks of hints."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.model import TestResult
    from disttest.runtime.world.judged_attempt import JudgedAttempt


@hookimpl(wrapper=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Add the hint that applies to the messages of the ranks."""
    result = yield
    if not result.outcome.is_bad or not attempt.has_ranks:
        return result
    from disttest.model import Section
    from disttest.plugins.hints.hints import hint_for
    from disttest.results.findings import with_section

    hint = hint_for(result)
    return with_section(result, "hints", Section(title=f"hint: {hint}")) if hint else result
