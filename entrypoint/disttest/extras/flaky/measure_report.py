"""The findings about a test, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from disttest.extras.flaky.causes import Cause, Tally
from disttest.extras.flaky.measure import Measurement, Trial
from disttest.extras.history.rates import describe_rate, wilson
from disttest.model import Frozen

_WIDTH = len("after others")


class Row(Frozen):
    """The numbers of one perturbation; ``low`` and ``high`` are Wilson's interval with 95 % confidence."""

    name: str
    failed: int
    ran: int
    spoiled: int
    rate: float
    low: float
    high: float


class Report(Frozen, omit_defaults=False):
    """The findings about a test."""

    test: str
    cause: Cause
    confidence: float
    by: str
    rows: tuple[Row, ...]
    command: str
    """Command that reproduces the failure with the smallest perturbation; empty if the test never failed."""

    @property
    def has_failed(self) -> bool:
        """Whether any run failed, or was spoiled by the machine."""
        return self.cause is not Cause.NEVER_FAILED


def report_on(nodeid: str, measurement: Measurement, command: Callable[[Trial, bool], str]) -> Report:
    """Return the findings.

    Args:
        nodeid: the test.
        measurement: its numbers so far.
        command: returns the command line of a trial, given whether it is certain to fail.
    """
    verdict, trial = measurement.verdict, measurement.smallest
    certain = verdict.cause in (Cause.DETERMINISTIC, Cause.SEED) or bool(trial and trial.before)
    return Report(
        test=nodeid,
        cause=verdict.cause,
        confidence=verdict.confidence,
        by=verdict.by,
        rows=tuple(
            _row(name, tally) for name, tally in {"plain": measurement.plain, **measurement.perturbed}.items()
        ),
        command=command(trial, certain) if trial else "",
    )


def _row(name: str, tally: Tally) -> Row:
    low, high = wilson(tally.failed, tally.ran)
    return Row(
        name=name,
        failed=tally.failed,
        ran=tally.ran,
        spoiled=tally.spoiled,
        rate=tally.rate,
        low=low,
        high=high,
    )


def describe_row(name: str, tally: Tally) -> str:
    """Format the numbers of a perturbation."""
    spoiled = f", and the machine spoiled {tally.spoiled}" if tally.spoiled else ""
    return f"  {name:{_WIDTH}}  {describe_rate(tally.failed, tally.ran)}{spoiled}"


def describe(report: Report) -> Iterator[str]:
    """Yield the last lines about a test."""
    # Never 100 %: the numbers of a sample prove nothing.
    sure = f" ({min(99.9, 100 * report.confidence):.1f} % sure)" if report.confidence else ""
    by = f", shown by {report.by}" if report.by else ""
    yield f"cause: {report.cause}{by}{sure}"
    if report.command:
        yield f"again: {report.command}"
