"""Hooks of ``disttest chaos``."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from disttest.extras.chaos.case import NAME, ChaosCase, FaultKind, case_of, fault_of
from disttest.extras.chaos.limits import DELAY_S, GROUP_S
from disttest.hookspecs import hookimpl
from disttest.options.option import Option, rows_of
from disttest.options.values import COUNT, SECONDS, SWITCH, text

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.model import TestCase, TestResult
    from disttest.reports.reporter import ReportTable
    from disttest.results.fold import RunResult
    from disttest.runtime.rank.rank_test import RankTest
    from disttest.runtime.world.attempt import Attempt
    from disttest.runtime.world.judged_attempt import JudgedAttempt


_chaos = rows_of("chaos")

OPTIONS = (
    _chaos(
        "fault",
        text("KIND:RANK:CALL[:during]"),
        "Try only this fault, such as kill:1:5.",
        many=True,
        inputs=(),
    ),
    _chaos(
        "kinds",
        text("KIND,…"),
        "Kinds of faults to inject.",
        default=tuple(FaultKind),
        otherwise=",".join(FaultKind),
        inputs=(),
    ),
    _chaos(
        "during", SWITCH, "Inject the fault while the call runs, not before it.", default=False, inputs=()
    ),
    _chaos("samples", COUNT, "Try N faults of each test, drawn with --seed.", otherwise="all", inputs=()),
    _chaos(
        "group-timeout",
        SECONDS,
        "Time limit of process groups in tests with a fault, unless theirs is shorter.",
        default=GROUP_S,
        inputs=(),
    ),
    _chaos("delay", SECONDS, "Delay of a late rank.", default=DELAY_S, inputs=()),
)


def options_of_fault(case: ChaosCase) -> Iterator[str]:
    """Yield the arguments with which ``disttest chaos`` tries this fault alone."""
    fault = case.fault
    if fault is None:
        return
    yield from ("--fault", str(fault))
    if case.limit_s != GROUP_S:
        yield from ("--group-timeout", f"{case.limit_s:g}")
    if case.delay_s != DELAY_S and fault.kind is FaultKind.DELAY:
        yield from ("--delay", f"{case.delay_s:g}")


_MARK = (
    "chaos(kill=..., stop=..., raise_=..., delay=..., recover=False, within_s=1): reaction that disttest chaos "
    "requires of the other ranks after each fault: connection-error, timeout, error, passes or recovers"
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Options of the command."""
    return OPTIONS


@hookimpl
def disttest_commands_that_run() -> Sequence[str]:
    """The command runs tests."""
    return (NAME,)


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest chaos``."""
    from disttest.extras.chaos.command import chaos

    group.add_command(chaos)


@hookimpl
def disttest_repeat_words(test: TestCase) -> Sequence[str] | None:
    """Repeat the test with the same fault."""
    case = case_of(test)
    return None if case is None else (NAME, *options_of_fault(case))


@hookimpl
def disttest_report_tables(run: RunResult) -> Sequence[ReportTable]:
    """Make a table for each test and kind of fault."""
    if not any(NAME in test.test.data for test in run.tests):
        return ()
    from disttest.extras.chaos.tables import report_tables

    return report_tables(run)


@hookimpl
def disttest_marks() -> Sequence[str]:
    """Describe the mark that states a contract."""
    return (_MARK,)


@hookimpl
def disttest_modify_tests(items: list[pytest.Item], config: pytest.Config) -> None:
    """Make one test of each fault of the plan."""
    from disttest.runtime.controller.orders import from_data, order_of

    if (plan := order_of(config).shared.data.get(NAME)) is not None:
        from disttest.extras.chaos.fault_items import add_fault_tests
        from disttest.extras.chaos.fault_plan import ChaosPlan

        add_fault_tests(items, config, from_data(plan, ChaosPlan))


@hookimpl
def disttest_test_data(item: pytest.Item) -> ChaosCase | None:
    """Return the fault and the contract of the test."""
    from disttest.runtime.controller.orders import order_of

    if NAME not in order_of(item.config).shared.data:
        return None
    from disttest.extras.chaos.fault_items import case_of_item

    return case_of_item(item)


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the parts that run in worlds and ranks."""
    from disttest.runtime.controller.orders import order_of

    if NAME in order_of(config).shared.data:
        from disttest.extras.chaos import in_rank, in_world  # noqa: F401


@hookimpl
def disttest_make_attempt(test: TestCase) -> type[Attempt] | None:
    """Use an attempt in which a failing rank does not end the others."""
    if fault_of(test) is None:
        return None
    from disttest.extras.chaos.in_world import FaultAttempt

    return FaultAttempt


@hookimpl(wrapper=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Judge the attempt by the contract of the test."""
    case = case_of(attempt.test)
    if case is None:
        return (yield)
    from disttest.extras.chaos.in_world import judge_chaos

    left: Sequence[str] = ()
    if case.fault is not None:
        # This ends the ranks first. A helper that ends with its rank is no leftover.
        left = attempt.left_behind()
        attempt.speaks = False  # reports of ranks do not know the contract
    result = yield
    return result if attempt.is_cancelled else judge_chaos(result, attempt.ranks, case, left)


@hookimpl(wrapper=True)
def disttest_rank_test(test: RankTest) -> Generator[None, bool, bool]:
    """Inject the fault and observe the rank."""
    if NAME not in test.data:
        return (yield)
    from disttest.extras.chaos.in_rank import observe_test

    return (yield from observe_test(test))
