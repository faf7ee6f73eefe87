"""The hooks of ``disttest chaos``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttest.extras.chaos.case import NAME, case_of, fault_of
from disttest.extras.chaos.options import OPTIONS, options_of_fault
from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.extras.chaos.case import ChaosCase
    from disttest.model import TestCase, TestResult
    from disttest.options.option import Option
    from disttest.reports.reporter import ReportTable
    from disttest.results.fold import RunResult
    from disttest.runtime.rank.rank_test import RankTest
    from disttest.runtime.world.attempt import Attempt
    from disttest.runtime.world.judged_attempt import JudgedAttempt

_MARK = (
    "chaos(kill=..., stop=..., raise_=..., delay=..., recover=False, within_s=1): what disttest chaos holds the test to "
    "when a rank is harmed: connection-error, timeout, error, passes or recovers"
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Those of the command."""
    return OPTIONS


@hookimpl
def disttest_commands_that_run() -> Sequence[str]:
    """Its own."""
    return (NAME,)


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """``disttest chaos``."""
    from disttest.extras.chaos.command import chaos

    group.add_command(chaos)


@hookimpl
def disttest_repeat_words(test: TestCase) -> Sequence[str] | None:
    """The same fault."""
    case = case_of(test)
    return None if case is None else (NAME, *options_of_fault(case))


@hookimpl
def disttest_report_tables(run: RunResult) -> Sequence[ReportTable]:
    """A table for each test and kind of fault."""
    if not any(NAME in test.test.data for test in run.tests):
        return ()
    from disttest.extras.chaos.tables import report_tables

    return report_tables(run)


@hookimpl
def disttest_old_fields() -> Mapping[str, Callable[[dict[str, Any]], None]]:
    """Version 0.1 wrote them beside the fields of the core."""
    return {NAME: _move_case, "unharmed": _move_unharmed}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plan of the command for its pytest processes."""
    parser.getgroup("disttest").addoption("--disttest-chaos", dest="disttest_chaos", help=argparse.SUPPRESS)


@hookimpl
def disttest_marks() -> Sequence[str]:
    """The contract of a test."""
    return (_MARK,)


@hookimpl
def disttest_modify_tests(items: list[pytest.Item], config: pytest.Config) -> None:
    """One test for each fault of the plan."""
    if plan := config.getoption("disttest_chaos"):
        from disttest.extras.chaos.harms import harm_each

        harm_each(items, config, Path(plan))


@hookimpl
def disttest_test_data(item: pytest.Item) -> ChaosCase | None:
    """Its fault and contract."""
    if not item.config.getoption("disttest_chaos"):
        return None
    from disttest.extras.chaos.harms import case_of_item

    return case_of_item(item)


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the parts in worlds and ranks."""
    if config.known_args_namespace.disttest_chaos:
        from disttest.extras.chaos import in_rank, in_world  # noqa: F401


@hookimpl
def disttest_make_attempt(test: TestCase) -> type[Attempt] | None:
    """One in which a failure ends nobody."""
    if fault_of(test) is None:
        return None
    from disttest.extras.chaos.in_world import HarmedAttempt

    return HarmedAttempt


@hookimpl(wrapper=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """By the contract of the test."""
    case = case_of(attempt.test)
    if case is None:
        return (yield)
    from disttest.extras.chaos.in_world import judge_chaos

    left: Sequence[str] = ()
    if case.fault is not None:
        left = attempt.left_behind()
        attempt.speaks = False  # no pytest report of a rank knows of the contract
    result = yield
    return result if attempt.is_cancelled else judge_chaos(result, attempt.ranks, case, left)


@hookimpl(wrapper=True)
def disttest_rank_test(test: RankTest) -> Generator[None, bool, bool]:
    """Strike and observe."""
    if NAME not in test.data:
        return (yield)
    from disttest.extras.chaos.in_rank import run_harmed

    return (yield from run_harmed(test))


def _move_case(event: dict[str, Any]) -> None:
    test = event.get("test")
    if isinstance(test, dict) and NAME in test:
        test.setdefault("data", {})[NAME] = test.pop(NAME)


def _move_unharmed(event: dict[str, Any]) -> None:
    result = event.get("result")
    if isinstance(result, dict) and "unharmed" in result:
        result.setdefault("sections", {})[NAME] = {"data": result.pop("unharmed")}
