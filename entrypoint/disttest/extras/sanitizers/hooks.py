"""Hooks of the sanitizers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disttest.extras.sanitizers.choice import move_findings
from disttest.extras.sanitizers.option_rows import OPTIONS, SANITIZE
from disttest.hookspecs import hookimpl
from disttest.plugin_manager import plugin_manager

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.model import TestResult
    from disttest.options.option import Option
    from disttest.runtime.rank.rank_test import Rank
    from disttest.runtime.world.judged_attempt import JudgedAttempt


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Option ``--sanitize``, and the options of ``disttest diverge``."""
    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest diverge``, which compares the records of the values sanitizer of two runs."""
    from disttest.extras.sanitizers.diverge import diverge

    group.add_command(diverge)


@hookimpl
def disttest_old_fields() -> Mapping[str, Callable[[dict[str, Any]], None]]:
    """Convert findings of version 0.1, which named each finder a sanitizer."""
    return {"sanitizer": move_findings}


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the recorders and judges."""
    del config
    from disttest.extras.sanitizers import in_rank, in_world  # noqa: F401


@hookimpl
def disttest_rank_configure(rank: Rank) -> None:
    """Start the recorders of the enabled sanitizers."""
    chosen = SANITIZE.of(rank.settings)
    if chosen and not (rank.spans_nodes or rank.is_launched):
        from disttest.extras.sanitizers.in_rank import Recorders

        plugin_manager().add(Recorders(chosen, rank.number), "disttest.sanitizers.in_rank")


@hookimpl(wrapper=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Compare the records of all ranks."""
    result = yield
    chosen = SANITIZE.of(attempt.settings)
    if not chosen or not attempt.has_ranks:
        return result
    from disttest.extras.sanitizers.in_world import keep_reports, sanitized

    result = sanitized(result, attempt, chosen)
    keep_reports(attempt, chosen)
    return result
