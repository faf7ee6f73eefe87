"""The hooks of disttest: the whole interface between its core and plugins, built-in or installed.

A plugin is a module, or any object, with functions of these names that are marked with :data:`hookimpl`::

    from disttest.hookspecs import hookimpl

    @hookimpl(wrapper=True)
    def disttest_judge_attempt(attempt):
        result = yield
        ...
        return result

An installed package names its plugin in the entry point group ``disttest``. ``-p no:NAME`` removes the plugin from a
run. disttest also registers each plugin with pytest, under the same name, so a plugin may have hooks of pytest as well.

A hook runs in one of five kinds of processes. Each description names its kind:

* command: the ``disttest`` process. It imports neither torch nor pytest; a plugin must import both inside its functions.
* controller: the pytest process that collects the tests.
* world: the process that starts the ranks of a world, gives them tests and judges what they report.
* rank: a process of a world, which runs the tests. The main process of a class that starts its ranks supervises them as a world
  does.
* node agent: a controller on a node of a cluster.

If a plugin raises an exception, the run ends with an error that names the plugin and the hook. No test passes that way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import click
    import pytest

    from disttest.cli.run_request import RunRequest
    from disttest.host.event_loop import NotedSignals
    from disttest.host.findings import DeviceFinding
    from disttest.host.machine import Machine
    from disttest.host.process import Child
    from disttest.model import CiJob, Collective, Invocation, TestCase, TestResult, WorldKind, WorldShape
    from disttest.options.option import Option
    from disttest.options.run import RunOptions, WorldSettings
    from disttest.outgoing import OutputFilter
    from disttest.planning.timings import Sample, WorldStart
    from disttest.reports.past_runs import PastRun
    from disttest.reports.reporter import Reporter, ReportFacts, ReportTable
    from disttest.results.conclusion import Demands
    from disttest.results.fold import RunResult
    from disttest.results.repeat import Run
    from disttest.runtime.controller.devices import Devices
    from disttest.runtime.controller.run_watch import RunWatch
    from disttest.runtime.controller.session import TestSelection
    from disttest.runtime.controller.target_host import TargetHost
    from disttest.runtime.controller.wanted_worlds import OwnWorld
    from disttest.runtime.messages.protocol import WorldOrder
    from disttest.runtime.rank.facet import FacetSource
    from disttest.runtime.rank.rank import ProcessMain
    from disttest.runtime.rank.rank_spec import RankSpec
    from disttest.runtime.rank.rank_test import PostMortem, Rank, RankTest
    from disttest.runtime.rank.waits import WatchedRank
    from disttest.runtime.supervisor.run_supervisor import PytestProcess, PytestStart
    from disttest.runtime.world.attempt import Attempt
    from disttest.runtime.world.evidence import EvidenceSource
    from disttest.runtime.world.judged_attempt import JudgedAttempt
    from disttest.runtime.world.rank_watch import RankWatch
    from disttest.runtime.world.world_supervisor import WorldSupervisor
    from disttest.runtime.world.world_watch import WorldWatch

PROJECT = "disttest"
"""Name of the entry point group, and pluggy's name of this interface."""

# pytest's own plugin manager accepts only hooks whose names begin with `pytest_`, and the command imports no
# pytest.
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Decorator that marks a function as the implementation of the hook of the same name; pluggy documents its arguments."""
of_pytest = pluggy.HookimplMarker("pytest")
"""The equivalent of ``pytest.hookimpl`` for plugins that the command imports: they must not import pytest."""

WRAPPED = ("disttest_judge_attempt", "disttest_rank_test")
"""Hooks that the core implements and that plugins wrap."""


# --- each process


@hookspec(firstresult=True)
def disttest_output_filter() -> OutputFilter | None:
    """Each process, once, when its plugins are loaded: return the filter for all text that leaves the process.

    Returns:
        An instance of a subclass of :class:`disttest.outgoing.OutputFilter`; None for no filter.
    """


@hookspec(firstresult=True)
def disttest_ci_job(environ: Mapping[str, str]) -> CiJob | None:
    """Command and controller: describe the job of a CI service that the process runs in.

    In a job the command shows no live view, folds passed tests in the log, and keeps results even if no test ran.

    Args:
        environ: environment of the process.

    Returns:
        The job; None if these variables name none of a service that the plugin knows.
    """


# --- command


@hookspec
def disttest_addoptions() -> Sequence[Option]:
    """Command and controller, before anything is parsed: return the options that the plugin adds to commands.

    A row that names the command ``run`` becomes an option of ``disttest run``, an option of plain pytest
    (``--disttest-NAME``), the variable ``DISTTEST_NAME`` and a setting of ``[tool.disttest]``. Every later hook gets
    the ``settings`` of the run; ``OPTION.of(settings)`` returns the value.
    """


@hookspec
def disttest_commands_that_run() -> Sequence[str]:
    """Command, before anything is parsed: name the commands of the plugin that run tests."""
    # They accept the options of every run.


@hookspec
def disttest_addcommands(group: click.Group) -> None:
    """Command, before anything is parsed: add a command to ``disttest``.

    Args:
        group: the command line; call ``group.add_command``. Import the implementation inside the command's function.
    """


@hookspec
def disttest_prepare_run(request: RunRequest) -> RunRequest | None:
    """Command, after the options of a run are read: change the request or refuse it.

    Raise :class:`disttest.errors.UsageError` to end the command with its message. ``dataclasses.replace`` and
    ``RunRequest.with_option`` make a changed request. A plugin that sets ``place`` sends the run to machines other than
    this one; plugins whose hook is ``trylast`` can read it.

    Args:
        request: all options and arguments of the command, as the plugin before this one returned it.

    Returns:
        The changed request; None to leave it as it is.
    """


@hookspec
def disttest_check_collection(options: RunOptions) -> None:
    """Command, before tests are listed or planned, or part of a plan runs: refuse options with a :class:`UsageError`.

    Args:
        options: options of the run.
    """


@hookspec(firstresult=True)
def disttest_processes_of_run(options: RunOptions) -> Sequence[PytestProcess] | None:
    """Command, before the run begins: return the pytest processes of the run, which run one after another.

    Args:
        options: options of the run.

    Returns:
        The processes, in order; None for one.
    """


@hookspec(firstresult=True)
def disttest_needs_terminal(request: RunRequest) -> bool | None:
    """Command, before the run is shown: return whether the run reads from the terminal, so that no live view covers it.

    Args:
        request: all options and arguments of the command.

    Returns:
        True, or None for no answer.
    """


@hookspec(firstresult=True)
def disttest_execute_run(request: RunRequest, signals: NotedSignals) -> int | None:
    """Command, before a run begins: run it in a different way.

    Args:
        request: all options and arguments of the command.
        signals: the signals that cancel the run.

    Returns:
        The exit code of the command; None to let the next plugin, and finally the core, run it.
    """


@hookspec(firstresult=True)
def disttest_start_pytest(start: PytestStart) -> Child | None:
    """Command, when it starts a pytest process of a run on this machine: start it in a different way.

    Args:
        start: the command line, the environment, and the descriptors.

    Returns:
        The process, a child of this one; None to let the next plugin, and finally the core, start it.
    """


@hookspec
def disttest_devices() -> Mapping[str, Callable[[str], object]]:
    """Command and controller, when ``--device`` is read: return the devices that the plugin provides on this machine.

    Returns:
        The form of each value, ``NAME`` or ``NAME:N``, mapped to a function that raises a
        :class:`disttest.errors.UsageError` for an invalid value of this name. :func:`disttest_around_run` makes the device.
    """


@hookspec
def disttest_around_run(request: RunRequest) -> AbstractContextManager[Mapping[str, str]] | None:
    """Command, immediately before a run: prepare this process, whose children run the tests.

    Args:
        request: all options and arguments of the command.

    Returns:
        A context that is active until the reports are written; None for nothing. Its value maps fields of options to the
        new text of each option.
    """


@hookspec
def disttest_watch_run(results: Callable[[], Path]) -> RunWatch | None:
    """Command, and controller of plain pytest, before the first test starts: watch the machine until the run ends.

    Args:
        results: returns the current path of the results directory.

    Returns:
        An instance of a subclass of :class:`disttest.runtime.controller.run_watch.RunWatch`; None not to watch.
    """


@hookspec
def disttest_run_data(request: RunRequest) -> Any:
    """Command, before a run begins: return data of the plugin that belong to the run.

    Args:
        request: all options and arguments of the command.

    Returns:
        A :class:`disttest.model.Frozen` struct or JSON data, or None. It becomes ``Invocation.data[NAME]``, where NAME is the
        last part of the plugin's name, and is in the journal and in ``results.json``.
    """


@hookspec
def disttest_hidden_variables(environ: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Command, before a run on this machine: name variables that the command hides from tests, and reports.

    Args:
        environ: environment of the command.

    Returns:
        The program that set the variables for its own processes, mapped to their names.
    """


@hookspec
def disttest_addreporters() -> Mapping[str, Reporter]:
    """Command, and controller of plain pytest, at the end of a run: return the reports that the plugin can write.

    Each format becomes a file in the results directory and a value of ``disttest report --format``.
    """


@hookspec
def disttest_past_runs(run: RunResult) -> Sequence[PastRun]:
    """Command, and controller of plain pytest, before the reports of a run are written: return earlier runs.

    The HTML page shows the results of each test in them, and the trend.

    Args:
        run: the result of the run.
    """


@hookspec(firstresult=True)
def disttest_read_past_runs(path: Path) -> Sequence[PastRun] | None:
    """Command, for each path of ``disttest report --history``: read the earlier runs in it.

    Args:
        path: a file or a directory.

    Returns:
        The runs; None if the path is not the plugin's.
    """


@hookspec(firstresult=True)
def disttest_read_timings(path: Path, head: bytes) -> Iterable[Sample | WorldStart | str] | None:
    """Command and controller, for each file of ``--timings``: read durations from a file of the plugin.

    Args:
        path: a regular file.
        head: its first 4 KiB, without white space at the beginning.

    Returns:
        Observed durations, and warnings as text; None if the file is not the plugin's.
    """


@hookspec
def disttest_check_run(run: RunResult, settings: Mapping[str, Any]) -> Demands | None:
    """Command, when all tests of a run or a merge have ended, before its reports are written: make demands on it.

    Args:
        run: result of the run.
        settings: options that only the command reads, by field: those of plugins with ``for_command``.

    Returns:
        The demands that it misses, with a sentence for each. They turn a green run red.
    """


@hookspec
def disttest_reports_written(results: Path) -> None:
    """Command, at the end of a run, when its reports are written, before :func:`disttest_run_finished`.

    Args:
        results: directory of the run.
    """


@hookspec
def disttest_show_summary(run: RunResult, results: Path, environ: Mapping[str, str]) -> Sequence[str]:
    """Command, when the reports of a run are written: show its summary outside of the results directory.

    Args:
        run: result of the run.
        results: directory of the run.
        environ: environment of the command.

    Returns:
        Messages about lost text. A run that loses a part of its reports does not pass.
    """


@hookspec
def disttest_before_final_lines(run: RunResult, environ: Mapping[str, str]) -> None:
    """Command, at the end of a run, when its reports are written: print lines above the final ones.

    Args:
        run: result of the run.
        environ: environment of the command.
    """


@hookspec
def disttest_run_finished(
    run: RunResult | None, results: Path | None, exit_code: int, environ: Mapping[str, str]
) -> Sequence[str]:
    """Command, when the exit code of a run is final: publish the outcome to other programs.

    A node that runs whole worlds for a command elsewhere calls it for its own run, too.

    Args:
        run: result of the run; None if it ended before it had one.
        results: directory of the run; None if ``run`` is None.
        exit_code: exit code of the command.
        environ: environment of the command.

    Returns:
        Messages to print.
    """


@hookspec
def disttest_command_failed(exit_code: int, environ: Mapping[str, str]) -> Sequence[str]:
    """Command, when any command of disttest ends with an error message instead of a result.

    Args:
        exit_code: exit code of the command.
        environ: environment of the command.

    Returns:
        Messages to print.
    """


@hookspec
def disttest_report_tables(run: RunResult) -> Sequence[ReportTable]:
    """Command, whenever a run is shown: return tables about the whole run, for the terminal, the summary and the HTML page.

    Args:
        run: result of the run.
    """


@hookspec
def disttest_report_facts(run: RunResult) -> Sequence[ReportFacts]:
    """Command, whenever a run is shown: return named facts about the whole run, for the terminal, the summary and the HTML page.

    Args:
        run: result of the run.
    """


@hookspec(firstresult=True)
def disttest_repeat_words(test: TestCase) -> Sequence[str] | None:
    """Command and controller, when a failure is written: return the first words of the command that repeats a test.

    Args:
        test: the failed test.

    Returns:
        The name of a command of ``disttest``, then its options; None for a test that ``disttest run`` repeats.
    """


@hookspec(firstresult=True)
def disttest_world_options(test: TestCase, invocation: Invocation) -> Sequence[str] | None:
    """Command and controller, when a failure is written: return the options that recreate the world of a repeated test.

    Args:
        test: the failed test.
        invocation: invocation of the run.

    Returns:
        Options of ``disttest run``, in place of ``--world-sizes`` and ``--one-world``; None for those.
    """


@hookspec
def disttest_further_commands(test: TestCase, result: TestResult, run: Run) -> Mapping[str, str]:
    """Command and controller, when a failure is written: return commands to show below the one that repeats the test.

    Args:
        test: the failed test.
        result: result of its last attempt.
        run: its invocation and root directory.

    Returns:
        A word such as ``again``, mapped to its command line, quoted for a shell.
    """


@hookspec(firstresult=True)
def disttest_message_id(message: str) -> str | None:
    """Every process, for a failed test and for an error that ends a command: return the id of the message.

    ``results.json`` and the journal have the id of each failed test.
    """


@hookspec
def disttest_doctor_checks() -> Iterable[DeviceFinding]:
    """Command ``disttest doctor``: check this machine, and return a finding for each device and check.

    A finding of grade ``BROKEN`` makes the command end with exit code 7.
    """


@hookspec
def disttest_schedulers() -> Mapping[str, str]:
    """Command and node agent, before anything is parsed: return the schedulers that the plugin adds to ``--launcher``.

    Returns:
        The name of each, mapped to the name of its module. The module has ``NODE_VARIABLES`` and
            ``make_launcher(environ, options)``, which ``docs/schedulers.md`` describes. It is imported when it is used.
    """


# --- controller


@hookspec(firstresult=True)
def disttest_make_devices(options: RunOptions) -> Devices | None:
    """Command and controller, before tests are collected: return the devices that the run computes on.

    The controller reserves them later, with ``Devices.acquire``. In the command only their hardware is read. Return
    devices also for a run on the CPU if reports should name the hardware; raise a
    :class:`disttest.errors.DisttestError` if the options require devices that are missing or broken. For example::

        @hookimpl
        def disttest_make_devices(options):
            from my_plugin.run import BoardDevices  # a subclass of disttest.runtime.controller.devices.Devices

            return BoardDevices(options)

    Args:
        options: options of the run.

    Returns:
        An instance of a subclass of :class:`disttest.runtime.controller.devices.Devices`; None for the next plugin, and
            finally the processors.
    """


@hookspec(firstresult=True)
def disttest_detect_machine() -> Machine | None:
    """Command and controller, when a run without devices is recorded: return this machine with the plugin's devices.

    It must not raise because of the state of the machine. For example::

        @hookimpl
        def disttest_detect_machine():
            from my_plugin.detect import detect  # returns a subclass of disttest.host.machine.Machine

            return detect()

    Returns:
        An instance of a subclass of :class:`disttest.host.machine.Machine`; None for the processors alone.
    """


@hookspec
def disttest_modify_tests(
    items: list[pytest.Item], config: pytest.Config, options: RunOptions, host: TargetHost
) -> None:
    """Controller and fresh interpreters, after collection, when each item has its world.

    Change ``items`` in place. Raise :class:`disttest.errors.UsageError` to end the run with its message.

    Args:
        items: all tests of the session, one for each world of a test.
        config: pytest's configuration.
        options: options of the run.
        host: the machine that the tests are collected for.
    """


@hookspec
def disttest_place_tests(
    pairs: list[tuple[pytest.Item, TestCase]], config: pytest.Config, options: RunOptions
) -> Sequence[str]:
    """Controller, when all tests of the run are described: decide, with all of them in view, where each runs.

    Args:
        pairs: items and their tests; change the list in place.
        config: pytest's configuration.
        options: options of the run.

    Returns:
        Messages for the user.
    """


@hookspec
def disttest_ordinary_tests_begin(options: RunOptions) -> None:
    """Controller, after all worlds have ended and before the first test runs in this process.

    Args:
        options: options of the run.
    """


@hookspec
def disttest_select_tests(
    items: Sequence[pytest.Item], describe: Callable[[pytest.Item], TestCase], config: pytest.Config
) -> TestSelection | None:
    """Controller, after collection, when test ids and worlds are final: return the tests that this run must run.

    A test runs if every plugin that answers keeps it. Raise :class:`disttest.errors.DisttestError` to end the run
    with its message.

    Args:
        items: all tests of the session, one for each world of a test.
        describe: returns the test case of an item.
        config: pytest's configuration.

    Returns:
        The tests to keep; None to keep all.
    """


@hookspec
def disttest_marks() -> Sequence[str]:
    """Controller: return the plugin's marks as pytest's setting ``markers`` does: ``name(arguments): description``."""


@hookspec
def disttest_load_parts(config: pytest.Config) -> None:
    """Controller, before any conftest is loaded if the user enabled disttest, and again before worlds are forked.

    Import here the modules of the plugin's parts in worlds and ranks. A conftest may replace names that they
    import, and each rank imports later modules itself.

    Args:
        config: pytest's configuration; ``config.known_args_namespace`` has the options.
    """


@hookspec
def disttest_test_data(item: pytest.Item) -> Any:
    """Controller, once for each item: return data of the plugin that travels with the test.

    Args:
        item: a test with its world.

    Returns:
        A :class:`disttest.model.Frozen` struct or JSON data, or None. It becomes ``TestCase.data[NAME]``, where
            NAME is the last part of the plugin's name, and is in the journal and in ``results.json``.
    """


@hookspec(firstresult=True)
def disttest_needs_new_ranks(world: WorldShape | None, kind: WorldKind, options: RunOptions) -> str | None:
    """Controller, once for each item: return why its ranks must be new processes, which run no other test.

    Args:
        world: the world that the test runs in.
        kind: how the test gets its ranks.
        options: options of the run.

    Returns:
        The reason, in a few words; None if its ranks may be shared.
    """


@hookspec
def disttest_notes_on_tests(tests: Sequence[TestCase], options: RunOptions) -> Sequence[str]:
    """Controller, before the first test runs: return lines to show, for example about tests that the plugin ignores.

    Args:
        tests: all tests of the run.
        options: options of the run.
    """


@hookspec(firstresult=True)
def disttest_leaves_tests(config: pytest.Config) -> bool | None:
    """Controller, whenever the core asks: return whether this process runs no tests and opens no journal.

    Args:
        config: pytest's configuration.

    Returns:
        True when a plugin runs the tests in another way; None otherwise.
    """


@hookspec(firstresult=True)
def disttest_timeout(item: pytest.Item) -> float | None:
    """Controller, for each item without a ``timeout`` mark in a run without ``--timeout``: return its limit.

    Args:
        item: a test.

    Returns:
        Seconds; None for the usual limit.
    """


@hookspec(firstresult=True)
def disttest_retries(item: pytest.Item) -> int | None:
    """Controller, for each item that runs outside of this process, in a run without ``--retries``: return its retries.

    Args:
        item: a test.

    Returns:
        Number of retries after a failure; None for no answer.
    """


@hookspec
def disttest_collecting_arguments(config: pytest.Config) -> Sequence[str]:
    """Controller, before the first world starts: return arguments for other processes that collect the same tests.

    They receive all arguments of this process already. Add the values that were decided later, so that they collect
    the same tests.

    Args:
        config: pytest's configuration.
    """


@hookspec
def disttest_set_options(config: pytest.Config, options: RunOptions) -> Mapping[str, Any]:
    """Controller, and each process that collects for ranks, when the options are read: change fields of the options.

    Raise :class:`disttest.errors.UsageError` to end the run with its message.

    Args:
        config: pytest's configuration.
        options: options of the run, as given.

    Returns:
        The value of each field of :class:`disttest.options.run.RunOptions` that the plugin sets. Two plugins cannot
        set the same field.
    """


@hookspec(firstresult=True)
def disttest_marks_are_foreign(item: pytest.Item, options: RunOptions) -> bool | None:
    """Controller, for each item with a ``world_size`` mark: return whether the mark belongs to another harness.

    Args:
        item: a test.
        options: options of the run.

    Returns:
        True if the test must not be multiplied by its mark; None for no answer.
    """


@hookspec(firstresult=True)
def disttest_world_of(item: pytest.Item, options: RunOptions, host: TargetHost) -> OwnWorld | None:
    """Controller, once for each item: return the world of a test whose marks do not define it.

    Args:
        item: a test.
        options: options of the run.
        host: the machine that the tests are collected for.

    Returns:
        How the test gets its ranks; None if its marks define that.
    """


@hookspec
def disttest_settle(config: pytest.Config, options: RunOptions) -> Any:
    """Controller, before the first world starts: return data of the plugin for every process of every world.

    Args:
        config: pytest's configuration.
        options: options of the run.

    Returns:
        A :class:`disttest.model.Frozen` struct or JSON data, or None. It becomes ``RankSpec.settled[NAME]`` as JSON
            data, where NAME is the last part of the plugin's name.
    """


@hookspec
def disttest_worlds_begin(items: Sequence[pytest.Item], config: pytest.Config) -> Sequence[str]:
    """Controller, before the first world starts: prepare for the tests that run in worlds.

    Args:
        items: the tests that run outside of this process.
        config: pytest's configuration.

    Returns:
        Notes for the record of the run.
    """


@hookspec
def disttest_world_ended(scratch: Path) -> None:
    """Controller, after each world ends.

    Args:
        scratch: directory of the world. All its processes could write to it; ``RankSpec.scratch`` is below it.
    """


@hookspec(firstresult=True)
def disttest_run_session(session: pytest.Session) -> bool | None:
    """Controller, after collection: run all tests in a different way.

    Args:
        session: pytest's session; ``session.items`` are the tests.

    Returns:
        True when the plugin has run them; None to let the core run them.
    """


@hookspec
def disttest_around_worlds(settings: WorldSettings) -> AbstractContextManager[object] | None:
    """Controller, before the first world is forked: prepare this process, of which worlds and ranks are forks.

    Args:
        settings: options of the run.

    Returns:
        A context that is active until the last world has ended; None for nothing.
    """


# --- world


# One object per set of ranks instead of one hook per event: a main process supervises several sets at the same
# time, and a plugin must keep their state apart.
@hookspec
def disttest_watch_ranks(
    settings: WorldSettings, size: int, evidence: Callable[[], Mapping[int, EvidenceSource]]
) -> RankWatch | None:
    """World, and main process of a class that starts its ranks, before they start: watch ranks while they run tests.

    A watch may find that no rank can continue, and so end a test before its limit. The hook is not called for ranks
    that span several machines.

    Args:
        settings: options of the run.
        size: number of ranks.
        evidence: returns, for each rank, how to request its stacks.

    Returns:
        An instance of a subclass of :class:`disttest.runtime.world.rank_watch.RankWatch`; None not to watch.
    """


@hookspec(firstresult=True)
def disttest_make_world(order: WorldOrder) -> type[WorldSupervisor] | None:
    """World, before its first process starts: return the class that supervises the world.

    Args:
        order: the tests, and the settings of the run that the world receives.

    Returns:
        A subclass of :class:`disttest.runtime.world.world_supervisor.WorldSupervisor`; None for the usual one.
    """


@hookspec
def disttest_watch_world(results: Callable[[], Path]) -> WorldWatch | None:
    """World, before its first process starts: watch the machine while the world runs tests.

    Args:
        results: returns the current path of the results directory.

    Returns:
        An instance of a subclass of :class:`disttest.runtime.world.world_watch.WorldWatch`; None not to watch.
    """


@hookspec(firstresult=True)
def disttest_make_attempt(test: TestCase) -> type[Attempt] | None:
    """World, before a test starts: return the class that decides when the test is over.

    Args:
        test: the test that is about to start.

    Returns:
        A subclass of :class:`disttest.runtime.world.attempt.Attempt`; None for the usual one.
    """


@hookspec(firstresult=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> TestResult:
    """World, when all ranks are done or have been ended: return the result of the test.

    The core judges by the outcomes of the ranks. A plugin wraps that (``hookimpl(wrapper=True)``), reads the
    reports of its part in the ranks, and returns a result with findings or a section::

        result = yield
        reports = attempt.reports("budget", BudgetReport)
        return with_findings(result, judge(reports))

    Args:
        attempt: the test, its ranks and their reports.
    """


# --- rank


@hookspec(firstresult=True)
def disttest_process_main(spec: RankSpec) -> ProcessMain | None:
    """Each process that a world starts, as its first action: return the main function of this process.

    Args:
        spec: description of the process.

    Returns:
        A function that runs tests until the world ends and never returns; None for the usual main function of a rank.
    """


@hookspec
def disttest_process_configure(spec: RankSpec, config: pytest.Config) -> None:
    """Each process that a world starts, once: a rank, or the process in which a class or an ordinary test runs.

    It runs before :func:`disttest_rank_configure`: the process has its log, and nothing else is set up.
    ``spec.kind`` is the kind of process.

    Args:
        spec: description of the process; ``spec.settled[NAME]`` is the result of :func:`disttest_settle`.
        config: pytest's configuration.
    """


@hookspec(firstresult=True)
def disttest_started_rank(
    rank: int, spec: RankSpec, config: pytest.Config, hold: Callable[[bool], None] | None
) -> PostMortem | None:
    """Rank that a test class starts, once, before its test. Other hooks of ranks are not called there.

    Args:
        rank: number of the rank.
        spec: description of the process that started it.
        config: pytest's configuration; no test runs by pytest's protocol here.
        hold: call it with whether a user holds this rank in a debugger; None unless the options have ``is_debugged``.

    Returns:
        A function that is called with each failure of a test; None for no interest.
    """


@hookspec
def disttest_process_saves() -> None:
    """Each process of a world in which tests run, after each test and when it leaves: write the data of the plugin.

    Such a process ends without running Python's exit handlers, and the next test may end it.
    """


@hookspec
def disttest_rank_environment(shape: WorldShape) -> Mapping[str, str]:
    """Rank, and main process of a class, when it starts: return environment variables that the user has not set.

    Each plugin sets its own variables. The first test already sees them.

    Args:
        shape: shape of the world.
    """


@hookspec(firstresult=True)
def disttest_calls_of_rank(rank: int, since_s: float, folder: Path) -> Sequence[Collective] | None:
    """Rank, also one that a class has started, when its test hangs: return its last collectives.

    The hook runs in a separate thread while the main thread may hang in any call. Import nothing in it.

    Args:
        rank: number of this rank.
        since_s: start of the test, in seconds since the epoch.
        folder: folder with the logs of the test; the plugin may write files there.

    Returns:
        The collectives, oldest first; None if the plugin knows of none.
    """


@hookspec
def disttest_join_watch(place: int, data: Mapping[str, Any]) -> WatchedRank | None:
    """Rank, also one that a class has started, once, before its first test: create the part of a watch in this rank.

    It runs before :func:`disttest_rank_configure`, and only if a plugin watches the ranks and torch is imported.

    Args:
        place: index of this rank among the ranks of its world.
        data: name of a plugin, mapped to ``RankWatch.for_ranks`` of its watch.

    Returns:
        An instance of a subclass of :class:`disttest.runtime.rank.waits.WatchedRank`; None if the plugin has no watch.
    """


@hookspec
def disttest_rank_configure(rank: Rank) -> None:
    """Rank, once: before its first test, and before the core records the state that it restores between tests.

    Install here anything that must observe every test, for example an :class:`disttest.observe.Tool`.

    Args:
        rank: this process.
    """


@hookspec
def disttest_group_made() -> None:
    """Rank, each time the core has made the default process group of a test, before the test begins."""


@hookspec(firstresult=True)
def disttest_rank_test(test: RankTest) -> bool:
    """Rank, around the setup, call and teardown of each test.

    The core runs pytest's protocol. A plugin wraps that: before its ``yield`` the test has not begun, after it the test
    is over but nothing has been cleaned up. ``test.report(NAME, data)`` sends data to the plugin's part in the world.

    Args:
        test: the running test.
    """


@hookspec
def disttest_leaks(shared_fixtures: bool) -> Sequence[str]:
    """Rank, after each test, when the state that it changed is restored: name resources that it has left in use.

    They become notes of the test. For example::

        @hookimpl
        def disttest_leaks(shared_fixtures):
            left = 0 if shared_fixtures else board.open_channels()
            return [f"{left} channels of the board are still open"] if left else []

    Args:
        shared_fixtures: whether fixtures of a wider scope are still set up; their resources are no leaks.
    """


# State is compared instead of guarded: wrapping torch's modes and functions would run tests in a different torch.
@hookspec
def disttest_state_facets() -> Sequence[FacetSource]:
    """Rank, and the process that ranks are forked from: return kinds of state that tests may change.

    The core reads each facet before and after a test, restores changed state, and names it in a note of the test. Reading
    must be fast. The hook is called once in a process; the facets of a library are loaded once it is imported.
    """
