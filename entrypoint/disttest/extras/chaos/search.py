"""Search of ``disttest chaos --samples``: try further faults until the smallest that breaks a contract is found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count

import click
import msgspec

from disttest.cli.words import warn
from disttest.errors import ExitCode
from disttest.extras.chaos.case import NAME, ChaosCase, Fault, fault_of
from disttest.extras.chaos.fault_plan import ChaosPlan, Wanted, make_case
from disttest.model import Frozen, TestCase
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.repeat import repeat_command

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
    for number in count(1):
        rounds = {nodeid: tried for nodeid, search in searches.items() if (tried := search.round())}
        if not rounds:
            break
        cases = {nodeid: _cases(tests[nodeid], tried, wanted) for nodeid, tried in rounds.items()}
        result = run(ChaosPlan(cases=cases), f"smaller-{number}")
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
