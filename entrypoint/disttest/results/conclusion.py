"""The end of a run: facts in, exit code and reason out. Pure; the only place that decides it.

The supervisor, plain pytest, a run on a cluster, the launcher and the merge bring what they know. Of one run, what ended
it early outweighs what its tests came to, and a file that could not be collected outweighs a failed test: nobody
knows what it would have said. A merged run comes to what the gravest of its shards has come to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from disttest.errors import ExitCode
from disttest.model import Cause, Frozen
from disttest.results.fold import RunResult
from disttest.results.rulings import NO_TEST_RAN


class Conclusion(NamedTuple):
    """What a run came to."""

    exit_code: int
    reason: str = ""
    """Why it ended early; empty when it ran to its end."""


class Process(Frozen):
    """How the pytest process of a run ended."""

    exit_code: int | None
    """None: by a signal."""
    ended: str
    """The same in words: ``exit code 3``."""
    has_reported: bool = True
    """Whether its last word is in the journal."""
    broken_off: str = ""
    """Why its exit code is not pytest's own, in words; empty where it is."""


class Facts(Frozen):
    """What is known of a run that is over."""

    signal: int = 0
    """The number of the signal that cancelled it."""
    deadline: str = ""
    """How its deadline passed, in words."""
    process: Process | None = None
    """None: no process reported for the whole run."""
    reason: str = ""
    """Why the process says that it ended early."""
    uncollected: bool = False
    """A file could not be collected."""
    failed: bool = False
    """A test failed."""
    spoiled: bool = False
    """A broken machine has kept a test from passing."""
    flaky: bool = False
    """A test is flaky, where that makes the run red."""
    uncalled: bool = False
    """There are tests, and nothing has called one."""
    empty: bool = False
    """No test was collected."""


def facts_of(run: RunResult) -> Facts:
    """What the tests and files of a run say."""
    causes = [test.final.cause for test in run.bad]
    return Facts(
        uncollected=bool(run.collection_errors),
        failed=any(cause is not Cause.INFRASTRUCTURE for cause in causes),
        spoiled=Cause.INFRASTRUCTURE in causes,
        flaky=run.flaky_fails and bool(run.flaky),
        uncalled=run.nothing_ran,
        empty=not run.tests,
    )


def conclude(facts: Facts) -> Conclusion:
    """What one run came to."""
    if facts.signal:
        # The library below it takes longer to import than `disttest --help` may take.
        from disttest.host.process import signal_name

        return Conclusion(128 + facts.signal, f"the run was cancelled by {signal_name(facts.signal)}")
    if facts.deadline:
        return Conclusion(ExitCode.DEADLINE, facts.deadline)
    if facts.process is not None and (early := _ended_early(facts.process, facts.reason)) is not None:
        return early
    code = _came_to(facts)
    if code == ExitCode.NOTHING_COLLECTED and facts.uncalled:
        return Conclusion(code, facts.reason or NO_TEST_RAN)
    return Conclusion(code, facts.reason)


def _ended_early(process: Process, reason: str) -> Conclusion | None:
    """What a process says that did not run its tests to the end; None where they speak for themselves."""
    code, reported = process.exit_code, process.has_reported
    if process.broken_off:
        return Conclusion(ExitCode.INTERNAL, process.broken_off)
    if code == ExitCode.DEADLINE:
        return Conclusion(ExitCode.DEADLINE, reason or "the deadline of the run passed")
    if not reported and code == ExitCode.USAGE:
        return Conclusion(ExitCode.USAGE, "pytest could not be started as asked")
    if not reported and code == ExitCode.INFRASTRUCTURE:
        return Conclusion(
            ExitCode.INFRASTRUCTURE,
            f"pytest gave up with {process.ended}: results cannot be kept, see above",
        )
    if not reported and code != ExitCode.NOTHING_COLLECTED:
        return Conclusion(
            ExitCode.INTERNAL, f"the pytest process ended with {process.ended} in the middle of the run"
        )
    if code in (ExitCode.PASSED, ExitCode.FAILED):
        return None
    if code is not None and (reason or code in _PYTESTS):
        return Conclusion(code, reason)  # any code: pytest.exit(returncode=…)
    return Conclusion(ExitCode.INTERNAL, f"the pytest process ended with {process.ended}")


_PYTESTS = (*range(6), ExitCode.NOT_ENOUGH_DEVICES, ExitCode.INFRASTRUCTURE)


def _came_to(facts: Facts) -> ExitCode:
    if facts.uncollected:
        return ExitCode.INTERRUPTED
    if facts.failed:
        return ExitCode.FAILED
    if facts.spoiled:
        return ExitCode.INFRASTRUCTURE
    if facts.flaky:
        return ExitCode.FAILED
    if facts.process is not None and facts.process.exit_code == ExitCode.FAILED:
        return ExitCode.FAILED  # for a reason that only pytest knows
    return ExitCode.NOTHING_COLLECTED if facts.uncalled or facts.empty else ExitCode.PASSED


_GRAVITY = (
    ExitCode.INTERRUPTED,
    ExitCode.FAILED,
    128,  # and above: a signal. GitHub cancels the other shards once one has failed, which must not hide that
    ExitCode.DEADLINE,
    ExitCode.INTERNAL,
    ExitCode.USAGE,
    ExitCode.SETUP,
    ExitCode.SCHEDULER,
    ExitCode.ENGINE,
    ExitCode.NOT_ENOUGH_DEVICES,
    ExitCode.INFRASTRUCTURE,
    ExitCode.NOTHING_COLLECTED,
    ExitCode.PASSED,
)


def join_exit_codes(codes: Iterable[int], *, something_ran: bool) -> int:
    """The gravest of the exit codes of shards; one that had nothing to run is fine where another one had."""
    counted = [code for code in codes if not (something_ran and code == ExitCode.NOTHING_COLLECTED)]
    return min(counted, key=_gravity, default=ExitCode.PASSED)


def _gravity(code: int) -> int:
    known = min(code, 128)
    return _GRAVITY.index(known) if known in _GRAVITY else _GRAVITY.index(ExitCode.INTERNAL)


class Demands(Frozen):
    """What a command asks of a run beyond its own conclusion, and whether it is met."""

    nothing_is_fine: bool = False
    """The plan has nothing for this shard."""
    idle: Sequence[str] = ()
    """Suites of which no test ran, where each has to."""
    broken: Sequence[str] = ()
    """Floors that were not kept."""
    lost: Sequence[str] = ()
    """Reports that could not be written."""


def settle(exit_code: int, demands: Demands) -> int:
    """The exit code of a command whose run came to ``exit_code``: only a green run can be turned red."""
    if exit_code == ExitCode.NOTHING_COLLECTED and demands.nothing_is_fine:
        exit_code = ExitCode.PASSED
    if exit_code:
        return exit_code
    if demands.idle:
        return ExitCode.NOT_ENOUGH_DEVICES
    if demands.broken:
        return ExitCode.FAILED
    return ExitCode.INTERNAL if demands.lost else ExitCode.PASSED
