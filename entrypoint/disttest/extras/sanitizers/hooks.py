"""The hooks of the sanitizers."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.plugin_manager import plugin_manager

if TYPE_CHECKING:
    import pytest

    from disttest.model import TestResult
    from disttest.runtime.rank.rank_test import Rank
    from disttest.runtime.world.judged_attempt import JudgedAttempt


@hookimpl
def disttest_prepare_forks(config: pytest.Config) -> None:
    """Import the recorders and judges."""
    del config
    from disttest.extras.sanitizers import in_rank, in_world  # noqa: F401


@hookimpl
def disttest_rank_configure(rank: Rank) -> None:
    """Start the recorders that the run wants."""
    if rank.settings.sanitize and not rank.spans_nodes:
        from disttest.extras.sanitizers.in_rank import Recorders

        plugin_manager().add(Recorders(rank.settings.sanitize, rank.number), "disttest.sanitizers.in_rank")


@hookimpl(wrapper=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Compare what the recorders of all ranks have seen."""
    result = yield
    if not attempt.settings.sanitize or not attempt.has_ranks:
        return result
    from disttest.extras.sanitizers.in_world import keep_reports, sanitized

    result = sanitized(result, attempt, attempt.settings.sanitize)
    keep_reports(attempt, attempt.settings.sanitize)
    return result
