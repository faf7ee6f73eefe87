"""Writes docs/verdicts.md from the table of rulings; with --check, only says whether it is up to date."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from generated_page import write_or_check

from disttest.model import Outcome
from disttest.results.rulings import RULES, RankState, Rule, rule_for, state_of
from disttest.runtime.messages.protocol import PhaseEnded, TestDone
from disttest.runtime.world.attempt import RankProgress

HEAD = """# Verdicts

Made by `make docs` from the table in the code (`results/rulings.py`); do not edit.

Each rank runs pytest's whole protocol and has one outcome. One table turns the outcomes of all ranks into the verdict, for
ranks of one machine, of several nodes, and of torch's own test classes.

- A test passes only if every rank ran it to its end and none failed.
- Ranks that skip a test that others run, or expect a failure that others do not, have run different tests. That is a
  failure without a culprit: `ranks disagree: rank 0 skipped, rank 1 passed`.
- `@pytest.mark.ranks_may_differ` allows it: the ranks that ran the test decide.
- A failed attempt stays failed if a rank skips in the retry, or fails as expected there without having been marked so
  before.
- A rank that fails, also as expected, ends its peers, since they would wait for it in vain. The world reads from shared
  memory whether an ended rank had the mark xfail too. A rank that calls `pytest.xfail` in a test marked `ranks_may_differ`
  ends only itself.
- A fixture of a wider scope that fails as a world ends early is an error of the last test there.
"""
WITHIN = """## Within one rank

A bad phase decides, wherever it is. A subtest counts if it failed; subtests that skip leave the rank passed, "without
some subtests".
"""
ACROSS = """## Over all ranks

The first row that applies decides.

| # | if | and all ranks are | the test is | why |
|---|---|---|---|---|"""
PAIRS = """## Two ranks

The verdict for each pair of outcomes; **disagree** is a failure. In the second table the test is marked `ranks_may_differ`.
"""
_WORDS = {
    RankState.FAILED: "failed",
    RankState.ERROR: "error in set-up or tear-down",
    RankState.NOT_RUN: "no report of the call",
}
_FINISHED = frozenset(RankState) - {RankState.ENDED, RankState.ENDED_XFAIL}
_PHASES = {
    "passed": Outcome.PASSED,
    "failed": Outcome.FAILED,
    "skipped": Outcome.SKIPPED,
    "xfailed": Outcome.XFAILED,
    "xpassed": Outcome.XPASSED,
    "xpassed (strict)": Outcome.XPASSED,
    "error": Outcome.ERROR,
}


def main() -> int:
    """Write the page, or compare it."""
    return write_or_check("verdicts.md", page(), __doc__)


def page() -> Iterator[str]:
    """The lines of the page."""
    yield HEAD
    yield WITHIN
    yield from _within_a_rank()
    yield ""
    yield ACROSS
    yield from (_row(number, rule) for number, rule in enumerate(RULES, 1))
    yield ""
    yield PAIRS
    for may_differ in (False, True):
        yield from _pairs(may_differ=may_differ)
        yield ""


def _within_a_rank() -> Iterator[str]:
    yield "| set-up | call | tear-down passed | tear-down failed | tear-down skipped |"
    yield "|---|---|---|---|---|"
    before = ("skipped", "xfailed", "error")
    calls = ("passed", "failed", "skipped", "xfailed", "xpassed", "xpassed (strict)", "")
    for setup, call in (*((setup, "") for setup in before), *(("passed", call) for call in calls)):
        comes_to = (_rank(setup, call, teardown) for teardown in ("passed", "error", "skipped"))
        yield f"| {setup} | {call or ('-' if setup != 'passed' else 'no report')} | {' | '.join(comes_to)} |"


def _rank(setup: str, call: str, teardown: str) -> str:
    phases = {"setup": setup, "call": call, "teardown": teardown}
    reports = [
        PhaseEnded(phase=name, outcome=_PHASES[said], strict="strict" in said, duration_s=0, ended_at_s=0)
        for name, said in phases.items()
        if said
    ]
    record = RankProgress(rank=0, pid=1, log="", reports=reports, done=TestDone()).record(0.0)
    return _word(state_of(record))


def _word(state: RankState) -> str:
    return _WORDS.get(state, state.value)


def _row(number: int, rule: Rule) -> str:
    conditions = (
        [f"one is {', '.join(_word(state) for state in RankState if state in rule.some)}"]
        if rule.some
        else []
    )
    conditions += ["the run was cancelled"] * rule.cancelled + ["the test is marked"] * rule.marked
    left_out = frozenset(RankState) - rule.only
    only = ", ".join(_word(state) for state in RankState if state in rule.only)
    if not left_out:
        only = "anything"
    elif len(left_out) < len(rule.only):
        only = f"not {', '.join(_word(state) for state in RankState if state in left_out)}"
    outcome = _outcome(rule) if rule.outcome else "as the culprit: failed, or an error outside of the call"
    return f"| {number} | {'; '.join(conditions) or '-'} | {only} | {outcome} | {rule.why} |"


def _outcome(rule: Rule) -> str:
    if rule.ruling == "disagreed":
        return "**disagree**"
    if rule.ruling == "not run":
        return "skipped (no test ran)"
    return rule.outcome.value if rule.outcome else "bad"


def _pairs(*, may_differ: bool) -> Iterator[str]:
    def together(first: tuple[RankState, ...], second: tuple[RankState, ...]) -> str:
        return _outcome(rule_for({first[0], second[0]}, may_differ=may_differ))

    states = [(state,) for state in RankState if not may_differ or state in _FINISHED]
    lines = {state: tuple(together(state, other) for other in states) for state in states}
    states = [
        tuple(state for (state,) in same) for _, same in itertools.groupby(states, key=lines.__getitem__)
    ]
    yield f"| {'marked' if may_differ else ''} | {' | '.join(map(_words, states))} |"
    yield "|---|" + "---|" * len(states)
    for first in states:
        yield f"| {_words(first)} | {' | '.join(together(first, second) for second in states)} |"


def _words(states: tuple[RankState, ...]) -> str:
    return ", ".join(map(_word, states))


if __name__ == "__main__":
    raise SystemExit(main())
