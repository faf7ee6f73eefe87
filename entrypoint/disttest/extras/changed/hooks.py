"""Hooks of ``--changed``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttest.extras.changed.option_rows import CHANGED, NAME, OPTIONS, RECORD
from disttest.hookspecs import hookimpl, of_pytest

if TYPE_CHECKING:
    import pytest

    from disttest.cli.run_request import RunRequest
    from disttest.extras.changed.choice import Reason
    from disttest.extras.changed.session import ChangedSession
    from disttest.model import TestCase
    from disttest.options.option import Option
    from disttest.reports.reporter import ReportTable
    from disttest.results.fold import RunResult
    from disttest.runtime.controller.session import TestSelection
    from disttest.runtime.rank.rank_spec import RankSpec


_sessions: list[ChangedSession] = []
"""The session of this process, if it selects or records."""
_refused: list[Exception] = []


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """``--changed``, and where its record is."""
    return OPTIONS


# Last: the plugins of clusters set the place of the run in this hook.
@hookimpl(trylast=True)
def disttest_prepare_run(request: RunRequest) -> None:
    """Refuse runs on other machines, whose tests are not recorded here."""
    if request.place is not None and (CHANGED.of(request.options) or RECORD.of(request.options)):
        from disttest.errors import UsageError

        raise UsageError(
            f"--changed and --record-coverage need tests on this machine; leave out {request.place.option}"
        )


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Watch the collection from its first import on."""
    given = config.known_args_namespace
    if not (given.disttest_changed or given.disttest_record_coverage == "true") or _sessions or _refused:
        return
    from disttest.runtime.controller.orders import collecting_order

    # A process that collects for ranks selects nothing: the controller has done so, and names the tests.
    if collecting_order(config) is not None:
        return
    from disttest.errors import UsageError
    from disttest.extras.changed.session import ChangedSession

    try:
        _sessions.append(ChangedSession(config))
    except UsageError as error:
        _refused.append(error)  # pytest would show an error of this early hook as an internal one


@of_pytest
def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Keep the names of all test modules, also of those whose tests are deselected."""
    for session in _sessions:
        session.test_files.add(session.relative(module_path))


@hookimpl(tryfirst=True)
def disttest_select_tests(
    items: Sequence[pytest.Item], describe: Callable[[pytest.Item], TestCase], config: pytest.Config
) -> TestSelection | None:
    """Select the tests that the change affects."""
    # Raised here, where the session turns it into a message of the run.
    for error in _refused:
        raise error
    return _sessions[0].select(items, describe, config) if _sessions else None


@hookimpl
def disttest_test_data(item: pytest.Item) -> Reason | None:
    """The reason for which the test runs."""
    return _sessions[0].reasons.get(item.nodeid) if _sessions else None


@hookimpl
def disttest_place_tests(pairs: list[tuple[pytest.Item, TestCase]]) -> Sequence[str]:
    """Keep how many GPUs each test occupies."""
    for session in _sessions:
        session.describe_tests(pairs)
    return ()


@hookimpl
def disttest_settle(config: pytest.Config) -> dict[str, str] | None:
    """Pass the root of the project to the processes of worlds."""
    del config
    return {"root": str(_sessions[0].root)} if _sessions else None


@hookimpl
def disttest_process_configure(spec: RankSpec, config: pytest.Config) -> None:
    """Record the tests of this process."""
    order: Any = spec.settled.get(NAME)
    if order is None or spec.partition is not None:  # the controller reads its own worlds only
        return
    from disttest.extras.changed.recorder import TestRecorder
    from disttest.extras.changed.session import RECORDER

    if config.pluginmanager.hasplugin(RECORDER):  # that of the process which this one is a fork of
        config.pluginmanager.unregister(name=RECORDER)
    config.pluginmanager.register(TestRecorder(order["root"], spec.scratch.parent), RECORDER)


@hookimpl
def disttest_world_ended(scratch: Path) -> None:
    """Read the lines of the processes of the world."""
    for session in _sessions:
        session.world_ended(scratch)


@of_pytest
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep outcomes for the record."""
    for session in _sessions:
        session.reported(report)


@of_pytest(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the record; a record that cannot be written fails no run."""
    # Nothing ran, so a record of this session would have no outcomes.
    if not _sessions or session.config.option.collectonly:
        return
    from disttest.errors import UsageError

    try:
        _sessions.pop().finish()
    # The tests have run, and their verdicts hold without a record. The next run selects more tests.
    except UsageError as error:
        print(f"disttest: {error}")  # noqa: T201


@hookimpl
def disttest_report_tables(run: RunResult) -> Sequence[ReportTable]:
    """Show the number of tests that were left out, and canaries that failed."""
    if NAME not in run.invocation.data:
        return ()
    from disttest.extras.changed.tables import report_tables

    return report_tables(run)
