"""Run of ``disttest chaos``: the baseline first, then each test once for each fault in each of its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from disttest.cli.finish import finish_run
from disttest.cli.progress_mode import choose_progress
from disttest.cli.words import warn
from disttest.errors import ExitCode, UsageError
from disttest.extras.chaos.case import NAME, baseline_ranks
from disttest.extras.chaos.fault_plan import ChaosPlan, Drawn, Wanted, draw
from disttest.extras.chaos.search import search_smallest
from disttest.model import Frozen, Hardware, Invocation, Outcome, TestCase
from disttest.options.environment import environment
from disttest.options.project_file import read_project_settings
from disttest.options.registry import RUN_OPTIONS
from disttest.options.run import RunOptions, by_command, filled, given_options, resolve_options
from disttest.planning.targets import Targets, resolve_targets
from disttest.reports.text import count
from disttest.reports.write import write_reports
from disttest.results.directory import ResultsDirectory, claim, claim_default
from disttest.results.earlier_runs import BEFORE
from disttest.results.floors import Floors
from disttest.results.fold import RunResult, TestOutcome
from disttest.runtime.controller.devices import make_devices
from disttest.runtime.controller.orders import ControllerOrder, Shared
from disttest.runtime.supervisor.run_supervisor import hold_signals, pytest_command, run_supervised

_RANKS_OF_A_PROCESSOR = 20
"""Ranks at a time for each processor: most of them wait for a time limit and use no processor."""
_MOST_AT_ONCE = 16
"""Worlds at a time; each takes memory."""
_TRACEBACKS = "--tb=native"
# Each survivor of a fault has a traceback. pytest's own style parses all source files of it again, which took half of
# the processor time of a chaos run.


class _Runs(Frozen):
    """Settings that all runs of one invocation of the command share."""

    flags: dict[str, str | None]
    targets: Targets
    hardware: Hardware
    invocation: Invocation
    pytest_args: tuple[str, ...]
    progress: str

    def run(self, plan: ChaosPlan, directory: ResultsDirectory, **changed: str) -> tuple[RunResult, bool]:
        """Run the tests as planned. Return the result, and whether its failures still have to be printed in full."""
        flags = {**self.flags, **changed}
        mode = choose_progress(self.progress, self.pytest_args, environment(), directory.path, ())
        extra = [*mode.pytest_arguments(), *[_TRACEBACKS] * bool(plan.cases), *self.pytest_args]
        result = run_supervised(
            pytest_command(self.targets, filled(flags, directory.path), extra),
            resolve_options(flags),
            directory,
            invocation=self.invocation,
            hardware=self.hardware,
            order=ControllerOrder(shared=Shared(data={NAME: plan}), columns=mode.columns),
            view=mode.view,
        )
        return result, mode.owes_failures


def run_chaos(targets: tuple[str, ...], pytest_args: Sequence[str], given: Mapping[str, Any]) -> int:
    """Run the command and return its exit code.

    Raises:
        UsageError: an option is invalid, or no test has a call that a fault can be injected into.
    """
    hold_signals()
    runs, options = _prepare(targets, tuple(pytest_args), given)
    wanted = _wanted(given, options)
    directory = claim(options.results) if options.results else claim_default(warn)
    # The faults are known only after the baseline, so it is a separate run. That costs one start of pytest.
    before = claim(directory.path / BEFORE)
    baseline, owes = runs.run(ChaosPlan(), before)
    if baseline.exit_code != ExitCode.PASSED:
        warn("no fault was tried, since not all tests pass without faults; fix the failures first")
        return _finish(baseline, before.path, owes=owes)
    write_reports(baseline, before.path)
    drawn = [draw(test.test, test.final, wanted) for test in baseline.tests if _is_counted(test)]
    for each in drawn:
        click.echo(_describe(each, wanted))
    if not any(each.cases for each in drawn):
        raise UsageError("no passed test calls torch.distributed; name tests with a world_size mark that do")
    slots = runs.flags.get("slots") or str(
        # Most worlds only wait for a time limit, so more ranks run at a time than in other runs.
        _slots(max(_size(each.test) for each in drawn), runs.hardware.cpus)
    )
    with_faults, owes = runs.run(_plan(drawn), directory, slots=slots)
    code = _finish(with_faults, directory.path, owes=owes)
    if not wanted.samples or wanted.faults:
        return code

    def run_round(plan: ChaosPlan, name: str) -> RunResult:
        folder = claim(directory.path / name)
        result, _ = runs.run(plan, folder, slots=slots)
        write_reports(result, folder.path)
        return result

    return search_smallest(with_faults, baseline.tests, wanted, run_round) or code


def _prepare(
    targets: tuple[str, ...], pytest_args: tuple[str, ...], given: Mapping[str, Any]
) -> tuple[_Runs, RunOptions]:
    flags = {option.field: given.get(option.field) for option in RUN_OPTIONS}
    flags = by_command(read_project_settings(targets).fill(flags))
    # The contract alone decides: other findings and retries would change the verdict.
    flags |= {"sanitize": "off", "record": "off", "retries": "0", "repeat": "1", "flaky": "pass"}
    options = resolve_options(flags)
    if "spmd" in options.given:
        raise UsageError("disttest chaos runs tests with a world_size mark; leave --spmd out")
    resolved = resolve_targets(targets)
    invocation = Invocation(
        cwd=str(Path.cwd()),
        workspace=environment().get("GITHUB_WORKSPACE", ""),
        bundled=resolved.bundled,
        options=given_options({option.field: given.get(option.field) for option in RUN_OPTIONS}),
        pytest_args=pytest_args,
    )
    runs = _Runs(
        flags=flags,
        targets=resolved,
        hardware=make_devices(options).machine.hardware(),
        invocation=invocation,
        pytest_args=pytest_args,
        progress=given["progress"],
    )
    return runs, options


def _wanted(given: Mapping[str, Any], options: RunOptions) -> Wanted:
    if given["delay"] >= given["group_timeout"]:
        raise UsageError(
            "--delay must be shorter than --group-timeout; otherwise the rank is treated as hung"
        )
    return Wanted(
        kinds=given["kinds"],
        during=given["during"],
        faults=given["fault"],
        samples=given["samples"] or 0,
        seed=options.seed,
        limit_s=given["group_timeout"],
        delay_s=given["delay"],
    )


def _is_counted(test: TestOutcome) -> bool:
    world = test.test.world
    passed = test.final.outcome is Outcome.PASSED
    return passed and world is not None and len(baseline_ranks(test.final)) == world.size


def _size(test: TestCase) -> int:
    return test.world.size if test.world else 1


def _slots(size: int, processors: int) -> int:
    """Number of ranks that worlds of this size may have at the same time."""
    return size * min(_MOST_AT_ONCE, max(1, _RANKS_OF_A_PROCESSOR * processors // size))


def _plan(drawn: Sequence[Drawn]) -> ChaosPlan:
    return ChaosPlan(cases={each.test.nodeid: each.cases for each in drawn})


def _describe(drawn: Drawn, wanted: Wanted) -> str:
    """Format ``chaos: test_x.py::test_step[4xgloo]: 192 faults``, or the number drawn of them."""
    number = len(drawn.cases)
    some = f"{number} of {drawn.of} faults, drawn with --seed {wanted.seed}"
    return f"chaos: {drawn.test.nodeid}: {some if number < drawn.of else count(number, 'fault')}"


def _finish(run: RunResult, results: Path, *, owes: bool) -> int:
    return finish_run(run, results, floors=Floors(), empty_shard=False, failures=owes, environ=environment())
