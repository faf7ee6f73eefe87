"""A sanitizer: it fails a test in which a rank issues more collectives than ``--collective-budget`` allows."""

from __future__ import annotations

from disttest.hookspecs import hookimpl
from disttest.model import PluginFinding, Section
from disttest.observe import Tool
from disttest.options.option import Option
from disttest.options.values import WHOLE
from disttest.results.findings import with_findings, with_section

NAME = "collective-budget"


# 1. The option. Every process of the run knows its value.
BUDGET = Option(
    name=NAME,
    type=WHOLE,
    help="How many collectives each rank may issue in a test.",
    commands=("run",),
    otherwise="no limit",
    has_variable=True,
    repeated=True,
)


@hookimpl
def disttest_addoptions():
    return [BUDGET]


# 2. In each rank: count the collectives of each test, and report the number.
class Counter(Tool):
    calls = 0

    def on_issue(self, call):  # noqa: ARG002
        self.calls += 1


counter = Counter()


@hookimpl
def disttest_rank_configure(rank):
    if BUDGET.of(rank.settings) is not None:
        rank.observe(counter)


@hookimpl(wrapper=True)
def disttest_rank_test(test):
    counter.calls = 0
    result = yield
    if BUDGET.of(test.rank.settings) is not None:
        test.report(NAME, counter.calls)
    return result


# 3. In the world: compare the numbers of all ranks with the budget.
@hookimpl(wrapper=True)
def disttest_judge_attempt(attempt):
    result = yield
    budget = BUDGET.of(attempt.settings)
    if budget is None:
        return result
    if not attempt.has_ranks:
        return with_findings(
            result, (), ["collective-budget: not counted, the class of the test starts its ranks"]
        )
    calls = attempt.reports(NAME, int)
    lines = tuple(f"rank {rank}: {number}" for rank, number in calls.items())
    result = with_section(result, NAME, Section(title="collectives", lines=lines, data=calls))
    return with_findings(
        result, [over(rank, number, budget) for rank, number in calls.items() if number > budget]
    )


def over(rank, number, budget):
    return PluginFinding(
        finder=NAME,
        kind="over-budget",
        message=f"rank {rank} issued {number} collectives, and the budget is {budget}",
        effect="each collective costs its latency, however small the tensor is",
        advice="flatten tensors into one buffer, or raise --collective-budget",
        fails=True,
    )
