"""The end of a run: facts in, exit code and reason out. Pure; the only place that decides it.

Supervisor, plain pytest, cluster runs, the launcher and the merge supply the facts. Within a run, an early end
outweighs the results of tests, and a file that could not be collected outweighs a failed test, because its tests are
unknown. A merged run has the gravest exit code of its shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from disttest.errors import ExitCode
from disttest.model import Cause, Frozen
from disttest.results.fold import RunResult
from disttest.results.rulings import NO_TEST_RAN


class Conclusion(NamedTuple):
    """Exit code and reason of a run."""

    exit_code: int
    reason: str = ""
    """Reason for an early end; empty if the run was completed."""


class Process(Frozen):
    """Exit status of the pytest process of a run."""

    exit_code: int | None
    """None if a signal ended it."""
    ended: str
    """The exit status as text: ``exit code 3``."""
    has_reported: bool = True
    """Whether its final report is in the journal."""
    broken_off: str = ""
    """Reason why the exit code is not pytest's own; empty if it is."""


class Facts(Frozen):
    """Facts about a finished run."""

    signal: int = 0
    """Number of the signal that cancelled it; 0 without one."""
    deadline: str = ""
    """Description of a missed deadline; empty without one."""
    process: Process | None = None
    """None if no process reports for the whole run."""
    reason: str = ""
    """Reason for an early end, as the process reports it."""
    uncollected: bool = False
    """Whether a file could not be collected."""
    failed: bool = False
    """Whether a test failed."""
    spoiled: bool = False
    """Whether a broken machine kept a test from passing."""
    flaky: bool = False
    """Whether a test is flaky and flaky tests fail the run."""
    uncalled: bool = False
    """Whether there are tests of which none was called."""
    empty: bool = False
    """Whether no test was collected."""


def facts_of(run: RunResult) -> Facts:
    """Derive the facts from the tests and files of a run."""
    causes = [test.final.cause for test in run.bad]
    return Facts(
        uncollected=bool(run.collection_errors),
        failed=any(cause is not Cause.INFRASTRUCTURE for cause in causes),
        spoiled=Cause.INFRASTRUCTURE in causes,
        flaky=run.flaky_fails and bool(run.flaky),
        uncalled=run.nothing_ran,
        # A file that skipped itself is in the reports, but none of its tests was collected.
        empty=all(test.final.phase == "collect" for test in run.tests),
    )


# Five entry points end a run. Each of them asks this one rule for its exit code.
# docs/decisions/0006-one-rule-for-the-end.md
def conclude(facts: Facts) -> Conclusion:
    """Conclude one run."""
    # A signal or a deadline comes first: the supervisor then ends pytest, and the exit code of pytest is a
    # consequence.
    if facts.signal:
        # Imported late: the library below it takes longer to import than `disttest --help` may take.
        from disttest.host.process import signal_name

        return Conclusion(128 + facts.signal, f"the run was cancelled by {signal_name(facts.signal)}")
    if facts.deadline:
        return Conclusion(ExitCode.DEADLINE, facts.deadline)
    if facts.process is not None and (early := _ended_early(facts.process, facts.reason)) is not None:
        return early
    code = _exit_code_of(facts)
    if code == ExitCode.NOTHING_COLLECTED and facts.uncalled:
        return Conclusion(code, facts.reason or NO_TEST_RAN)
    return Conclusion(code, facts.reason)


def _ended_early(process: Process, reason: str) -> Conclusion | None:
    """Conclude from a process that did not run its tests to the end; None if the tests decide."""
    code, reported = process.exit_code, process.has_reported
    if process.broken_off:
        # `os._exit(5)` in a test module would otherwise look like "no tests ran".
        return Conclusion(ExitCode.INTERNAL, process.broken_off)
    if code == ExitCode.DEADLINE:
        return Conclusion(ExitCode.DEADLINE, reason or "the deadline of the run passed")
    # pytest rejects unknown options before the plugin can open the journal.
    if not reported and code == ExitCode.USAGE:
        return Conclusion(ExitCode.USAGE, "pytest could not be started with these arguments")
    # The controller leaves with this code when the journal cannot be written, so its report is missing, too.
    if not reported and code == ExitCode.INFRASTRUCTURE:
        return Conclusion(
            ExitCode.INFRASTRUCTURE,
            f"pytest gave up with {process.ended}: results could not be written, see above",
        )
    if not reported and code != ExitCode.NOTHING_COLLECTED:
        return Conclusion(
            ExitCode.INTERNAL, f"the pytest process ended with {process.ended} in the middle of the run"
        )
    # The tests decide: pytest ends with 1 for a failed test and for one that a broken machine spoiled.
    if code in (ExitCode.PASSED, ExitCode.FAILED):
        return None
    if code is not None and (reason or code in _PYTESTS):
        # Any code is possible with pytest.exit(returncode=…).
        return Conclusion(code, reason)
    return Conclusion(ExitCode.INTERNAL, f"the pytest process ended with {process.ended}")


# pytest's own codes, and those with which the plugin ends a session.
_PYTESTS = (*range(6), ExitCode.NOT_ENOUGH_DEVICES, ExitCode.INFRASTRUCTURE)


def _exit_code_of(facts: Facts) -> ExitCode:
    if facts.uncollected:
        return ExitCode.INTERRUPTED
    if facts.failed:
        return ExitCode.FAILED
    if facts.spoiled:
        return ExitCode.INFRASTRUCTURE
    if facts.flaky:
        return ExitCode.FAILED
    if facts.process is not None and facts.process.exit_code == ExitCode.FAILED:
        # pytest alone knows the reason.
        return ExitCode.FAILED
    return ExitCode.NOTHING_COLLECTED if facts.uncalled or facts.empty else ExitCode.PASSED


# Gravest first. A merge needs one code, and a failed test outweighs all reasons for which a shard ended
# early.
_GRAVITY = (
    ExitCode.INTERRUPTED,
    ExitCode.FAILED,
    # 128 and above is a signal. A CI service cancels the other shards once one has failed, which must not hide the failure.
    128,
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
    """Return the gravest exit code of shards; a shard without tests is fine if another one ran some."""
    # A plan may leave a shard without tests on this kind of machine.
    counted = [code for code in codes if not (something_ran and code == ExitCode.NOTHING_COLLECTED)]
    return min(counted, key=_gravity, default=ExitCode.PASSED)


def _gravity(code: int) -> int:
    known = min(code, 128)
    return _GRAVITY.index(known) if known in _GRAVITY else _GRAVITY.index(ExitCode.INTERNAL)


class Demands(Frozen):
    """Demands of a command on a run beyond its own conclusion, and whether they are met."""

    nothing_is_fine: bool = False
    """Whether the plan assigns no tests to this shard."""
    idle: Sequence[str] = ()
    """Suites of which no test ran although each must run some."""
    broken: Sequence[str] = ()
    """Floors that were not reached."""
    lost: Sequence[str] = ()
    """Reports that could not be written, and demands that could not be checked."""


def final_exit_code(exit_code: int, demands: Demands) -> int:
    """Return the exit code of a command whose run ended with ``exit_code``; only a green run can be turned red."""
    if exit_code == ExitCode.NOTHING_COLLECTED and demands.nothing_is_fine:
        exit_code = ExitCode.PASSED
    if exit_code:
        return exit_code
    if demands.idle:
        return ExitCode.NOT_ENOUGH_DEVICES
    if demands.broken:
        return ExitCode.FAILED
    # A lost report comes last, because it must not hide a missed floor.
    return ExitCode.INTERNAL if demands.lost else ExitCode.PASSED
