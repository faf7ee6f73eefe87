"""The hooks of flaky tests."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from disttest.extras.flaky.perturb import PERTURBED
from disttest.extras.history.hooks import FILE as HISTORY
from disttest.hookspecs import hookimpl, of_pytest
from disttest.options.option import Option, of_every_run, rows_of
from disttest.options.values import SECONDS, SWITCH, path, text

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.extras.flaky.judging import InQuarantine
    from disttest.model import TestCase, TestResult
    from disttest.options.run import RunOptions, WorldSettings
    from disttest.reports.reporter import ReportTable
    from disttest.results.fold import RunResult
    from disttest.runtime.world.judged_attempt import JudgedAttempt

NAME = "flaky"
USUAL = "flaky.toml"

FILE = of_every_run(
    "quarantine",
    path("FILE"),
    "Tests whose failures do not fail the run until a date.",
    otherwise=f"{USUAL} in pytest's root directory, if it is there",
)

PERTURB = of_every_run(
    "perturb",
    PERTURBED,
    "Disturb tests in ranks, and isolated ones: delay:0.2 makes one rank start or return from collectives up to 0.2 s late, "
    "cpu:4 leaves one processor, with 4 busy processes, threads:1 limits compute threads, memory:2g the memory of each process, "
    "crowd runs isolated tests at the same time.",
    repeated=True,
)

OPTIONS: tuple[Option, ...] = (
    FILE,
    PERTURB,
    rows_of(NAME)(
        "budget", SECONDS, "Time for the measurement, shared evenly by the tests.", default=120.0, inputs=()
    ),
    rows_of(NAME)("until-fail", SWITCH, "Stop at the first failure.", default=False, inputs=()),
    rows_of(NAME)("json", text("FILE"), "Write the findings as JSON; - is standard output.", inputs=()),
    rows_of(NAME)("fail", SWITCH, "For audit: exit code 1 if an entry should go.", default=False, inputs=()),
    rows_of(NAME)(
        HISTORY.name,
        HISTORY.type,
        "For audit: history file, which says which tests are stable now.",
        inputs=(),
    ),
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """``--quarantine``, and those of the command."""
    return OPTIONS


@hookimpl
def disttest_commands_that_run() -> Sequence[str]:
    """Name its own command."""
    return (NAME,)


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """``disttest flaky``."""
    from disttest.extras.flaky.command import flaky

    group.add_command(flaky)


@hookimpl
def disttest_modify_tests(items: list[pytest.Item], config: pytest.Config, options: RunOptions) -> None:
    """Read which tests are in quarantine."""
    from disttest.extras.flaky.in_session import read_for_session

    read_for_session(items, config, options)


@hookimpl
def disttest_test_data(item: pytest.Item) -> InQuarantine | None:
    """The entry of the test."""
    from disttest.extras.flaky.in_session import entry_in_session

    return entry_in_session(item)


@hookimpl
def disttest_notes_on_tests(tests: Sequence[TestCase]) -> Sequence[str]:
    """Entries that have expired."""
    if not any(NAME in test.data for test in tests):
        return ()
    from disttest.extras.flaky.judging import notes_on

    return notes_on(tests)


@hookimpl(wrapper=True, tryfirst=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Keep the failure of a test in quarantine from failing the run: what sanitizers and other plugins find, too."""
    result = yield
    if NAME not in attempt.test.data or attempt.is_cancelled:
        return result
    from disttest.extras.flaky.judging import hidden, quarantine_of

    entry = quarantine_of(attempt.test)
    # Only failures change. A pass of a test in quarantine is a pass, since it is flaky and not broken.
    if entry is None or not result.outcome.is_bad:
        return result
    changed = hidden(result, entry)
    attempt.speaks = attempt.speaks and changed is result  # the report of no rank says this
    return changed


@of_pytest(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The same for tests that run in the pytest process."""
    report = yield
    if report.failed:
        from disttest.extras.flaky.in_session import hide_in_controller

        hide_in_controller(item, report)
    return report


@hookimpl
def disttest_load_parts() -> None:
    """Import the part that perturbs tests."""
    from disttest.extras.flaky import in_test  # noqa: F401


@hookimpl(trylast=True)  # after isolated tests have their places
def disttest_place_tests(pairs: list[tuple[pytest.Item, TestCase]], options: RunOptions) -> Sequence[str]:
    """Let isolated tests run at the same time."""
    perturbed = PERTURB.of(options)
    if perturbed is not None and perturbed.crowd:
        from disttest.extras.flaky.perturb import without_turns
        from disttest.runtime.controller.collect import runs_alone

        pairs[:] = [(item, without_turns(test, alone=runs_alone(item, options))) for item, test in pairs]
    return ()


@hookimpl
def disttest_around_worlds(settings: WorldSettings) -> AbstractContextManager[object] | None:
    """Perturb the processes of all tests."""
    perturbed = PERTURB.of(settings)
    if perturbed is None:
        return None
    from disttest.extras.flaky.perturb import perturbing

    return perturbing(perturbed)


@of_pytest(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Perturb a test in its process, a rank or another one."""
    from disttest.runtime.controller.session_options import OPTIONS as ALL

    settings = item.config.stash.get(ALL, None)
    perturbed = PERTURB.of(settings) if settings else None
    if perturbed is None:
        return (yield)
    from disttest.extras.flaky.in_test import perturbing_test

    with perturbing_test(perturbed, item.nodeid):
        return (yield)


@hookimpl
def disttest_report_tables(run: RunResult) -> Sequence[ReportTable]:
    """Tests in quarantine."""
    if not any(NAME in test.test.data for test in run.tests):
        return ()
    from disttest.extras.flaky.tables import report_tables

    return report_tables(run)
