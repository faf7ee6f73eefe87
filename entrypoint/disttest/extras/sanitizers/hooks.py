"""Hooks of the sanitizers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from disttest.extras.sanitizers.choice import FORM, Chosen, parse_chosen, show_chosen
from disttest.hookspecs import hookimpl
from disttest.options.option import Option, of_every_run, rows_of
from disttest.options.values import RATIO, Type, text
from disttest.plugin_manager import plugin_manager

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.model import TestResult
    from disttest.runtime.rank.rank_test import Rank
    from disttest.runtime.world.judged_attempt import JudgedAttempt


SANITIZE = of_every_run(
    "sanitize",
    Type(form=FORM, parse=parse_chosen, show=show_chosen),
    "Look for more faults in tests that pass; a finding fails the test, or is a warning with :warn.",
    # A warning by default: a finding has passed on this backend.
    default=(Chosen(name="order", fails=False),),
    repeated=True,
)
_diverge = rows_of("diverge")

OPTIONS = (
    SANITIZE,
    _diverge("test", text("TEXT"), "Compare tests whose id contains this.", otherwise="all"),
    _diverge(
        "tolerance",
        RATIO,
        "Relative tolerance of numbers.",
        otherwise="every bit counts",
    ),
)


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
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the recorders and judges."""
    del config
    from disttest.extras.sanitizers import running  # noqa: F401


@hookimpl
def disttest_rank_configure(rank: Rank) -> None:
    """Start the recorders of the enabled sanitizers."""
    chosen = SANITIZE.of(rank.settings)
    if chosen and not (rank.spans_nodes or rank.is_launched):
        from disttest.extras.sanitizers.running import Recorders

        plugin_manager().add(Recorders(chosen, rank.number), "disttest.sanitizers.recorders")


@hookimpl(wrapper=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Compare the records of all ranks."""
    result = yield
    chosen = SANITIZE.of(attempt.settings)
    if not chosen or not attempt.has_ranks:
        return result
    from disttest.extras.sanitizers.running import keep_reports, sanitized

    result = sanitized(result, attempt, chosen)
    keep_reports(attempt, chosen)
    return result
