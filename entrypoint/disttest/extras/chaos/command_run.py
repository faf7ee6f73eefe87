"""Run of ``disttest chaos``: the baseline first, then each test once for each fault in each of its calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from disttest.cli.finish import finish_run
from disttest.cli.progress_mode import choose_progress
from disttest.cli.words import warn
from disttest.errors import ExitCode, UsageError
from disttest.extras.chaos.case import NAME, ChaosCase, Fault, baseline_ranks, fault_of
from disttest.extras.chaos.fault_plan import ChaosPlan, Drawn, Wanted, draw, make_case
from disttest.model import Frozen, Hardware, Invocation, Outcome, TestCase
from disttest.options.environment import ci_workspace, environment
from disttest.options.project_file import read_project_settings
from disttest.options.registry import RUN_OPTIONS
from disttest.options.run import RunOptions, by_command, filled, given_options, resolve_options
from disttest.planning.targets import Targets, resolve_targets
from disttest.reports.text import count
from disttest.reports.write import write_reports
from disttest.results.directory import ResultsDirectory, claim, claim_default
from disttest.results.earlier_runs import BEFORE
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.repeat import repeat_command
from disttest.runtime.controller.devices import make_devices
from disttest.runtime.controller.orders import ControllerOrder, Shared
from disttest.runtime.supervisor.run_supervisor import hold_signals, pytest_command, run_supervised

_AT_ONCE = 8
"""Calls tried in one round."""


class Search(Frozen):
    """State of a search among the earlier calls of a rank."""

    fault: Fault
    """The smallest fault known to break the contract."""
    tried: frozenset[int]
    """Calls in which this kind of fault was injected into this rank."""
    after: int = 0
    """Search later calls only: a whole round up to this one kept the contract."""

    def round(self) -> tuple[Fault, ...]:
        """Return the faults to try next, spread evenly over the untried calls; empty when the search is over."""
        untried = [call for call in range(self.after + 1, self.fault.call) if call not in self.tried]
        # Several places in each round instead of the middle: they run at the same time. A contract may hold
        # at a call between two calls that break it.
        number = min(_AT_ONCE, len(untried))
        calls = (untried[(2 * place + 1) * len(untried) // (2 * number)] for place in range(number))
        return tuple(msgspec.structs.replace(self.fault, call=call) for call in calls)

    def advanced(self, tried: Iterable[Fault], broken: Collection[Fault]) -> Search:
        """Return the search after a round: continue before its smallest breaking fault, or after the round if none
        broke."""
        calls = {fault.call for fault in tried}
        smaller = msgspec.structs.replace(self, tried=self.tried | calls)
        if broken:
            return msgspec.structs.replace(smaller, fault=min(broken, key=_call))
        # A whole round kept the contract, so the search does not look below it again. Without that it would
        # try all calls.
        return msgspec.structs.replace(smaller, after=max(calls))

    @property
    def tried_before(self) -> int:
        """Number of calls before the smallest fault that were tried and kept the contract."""
        return sum(call < self.fault.call for call in self.tried)


def begin_search(tried: Collection[Fault], broken: Collection[Fault]) -> Search | None:
    """Begin a search at the earliest call in which a fault broke the contract; None if none did."""
    if not broken:
        return None
    smallest = min(broken, key=_call)
    alike = (fault for fault in tried if (fault.kind, fault.rank) == (smallest.kind, smallest.rank))
    return Search(fault=smallest, tried=frozenset(map(_call, alike)))


def _call(fault: Fault) -> int:
    return fault.call


_FaultOutcomes = dict[Fault, TestOutcome]
"""Faults of one test -> the outcome of each."""


def search_smallest(
    with_faults: RunResult,
    baseline: Sequence[TestOutcome],
    wanted: Wanted,
    run: Callable[[ChaosPlan, str], RunResult],
) -> int:
    """Search the smallest fault of each test in which a sampled one broke the contract, and print a line for each.

    Args:
        with_faults: results with the sampled faults.
        baseline: the tests of the baseline.
        wanted: faults that the user selected.
        run: runs a plan and writes its results into a folder of the given name.

    Returns:
        The exit code of a round that did not finish, otherwise 0.
    """
    tests = {test.test.nodeid: test for test in baseline}
    seen = _by_test(with_faults)
    begun = {nodeid: begin_search(tuple(each), _broken(each)) for nodeid, each in seen.items()}
    searches = {nodeid: search for nodeid, search in begun.items() if search is not None}
    code: int = ExitCode.PASSED
    for number in itertools.count(1):
        rounds = {nodeid: tried for nodeid, search in searches.items() if (tried := search.round())}
        if not rounds:
            break
        cases = {nodeid: _cases(tests[nodeid], tried, wanted) for nodeid, tried in rounds.items()}
        result = run(ChaosPlan(cases=cases), f"smaller-{number}")
        # FAILED is the usual code: a fault that breaks the contract is a failed test.
        if result.exit_code not in (ExitCode.PASSED, ExitCode.FAILED):
            warn("the search for smaller faults did not finish")
            code = result.exit_code
            break
        found = _by_test(result)
        for nodeid, tried in rounds.items():
            seen[nodeid] |= found.get(nodeid, {})
            searches[nodeid] = searches[nodeid].advanced(tried, _broken(found.get(nodeid, {})))
    for nodeid, search in searches.items():
        click.echo(_describe(nodeid, search, seen[nodeid][search.fault].test, with_faults))
    return code


def _by_test(run: RunResult) -> dict[str, _FaultOutcomes]:
    """Node id of the baseline test -> the outcome of each of its faults."""
    found: dict[str, _FaultOutcomes] = {}
    for test in run.tests:
        fault = fault_of(test.test)
        if fault is not None:
            found.setdefault(test.test.collected_as, {})[fault] = test
    return found


def _broken(outcomes: Mapping[Fault, TestOutcome]) -> list[Fault]:
    return [
        fault
        for fault, test in outcomes.items()
        if any(finding.finder == NAME for finding in test.final.findings)
    ]


def _cases(test: TestOutcome, faults: Sequence[Fault], wanted: Wanted) -> tuple[ChaosCase, ...]:
    return tuple(make_case(test.test, test.final, fault, wanted) for fault in faults)


def _describe(nodeid: str, search: Search, test: TestCase, run: RunResult) -> str:
    fault = search.fault
    tried = f"{search.tried_before} of {fault.call - 1} earlier calls of rank {fault.rank} tried"
    return f"chaos: {fault} is the smallest that breaks {nodeid} ({tried}): {repeat_command(test, run)}"


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
    # From the first line on: a signal between the runs would otherwise end the command without its reports.
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
        click.echo(_describe_draw(each, wanted))
    if not any(each.cases for each in drawn):
        raise UsageError("no passed test calls torch.distributed; name tests with a world_size mark that do")
    slots = runs.flags.get("slots") or str(
        # Most worlds only wait for a time limit, so more ranks run at a time than in other runs.
        _slots(max(_size(each.test) for each in drawn), runs.hardware.cpus)
    )
    with_faults, owes = runs.run(_plan(drawn), directory, slots=slots)
    code = _finish(with_faults, directory.path, owes=owes)
    # For samples only: with all faults tried, the smallest is known already.
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
        workspace=ci_workspace(),
        bundled=resolved.bundled,
        # The options as given, without those that are forced above: reports repeat the user's command.
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
    # A rank without torch.distributed reports no calls, and a plan needs the calls of all ranks.
    return passed and world is not None and len(baseline_ranks(test.final)) == world.size


def _size(test: TestCase) -> int:
    return test.world.size if test.world else 1


def _slots(size: int, processors: int) -> int:
    """Number of ranks that worlds of this size may have at the same time."""
    return size * min(_MOST_AT_ONCE, max(1, _RANKS_OF_A_PROCESSOR * processors // size))


def _plan(drawn: Sequence[Drawn]) -> ChaosPlan:
    return ChaosPlan(cases={each.test.nodeid: each.cases for each in drawn})


def _describe_draw(drawn: Drawn, wanted: Wanted) -> str:
    """Format ``chaos: test_x.py::test_step[4xgloo]: 192 faults``, or the number drawn of them."""
    number = len(drawn.cases)
    some = f"{number} of {drawn.of} faults, drawn with --seed {wanted.seed}"
    return f"chaos: {drawn.test.nodeid}: {some if number < drawn.of else count(number, 'fault')}"


def _finish(run: RunResult, results: Path, *, owes: bool) -> int:
    return finish_run(run, results, settings={}, empty_shard=False, failures=owes, environ=environment())
