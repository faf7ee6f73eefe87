"""Lines at the end of pytest's own terminal output that explain its counts."""

from __future__ import annotations

from _pytest.terminal import TerminalReporter

from disttest.results.verdict import NOT_RUN
from disttest.runtime.controller.run_recorder import RunRecorder


def write_end(reporter: TerminalReporter, recorder: RunRecorder, *, without_worlds: str) -> None:
    """List flaky tests, failed tests that torch's harness would have passed, and tests that it passes vacuously.

    Args:
        reporter: pytest's terminal reporter.
        recorder: recorder of the run.
        without_worlds: message for a green run that used no world; empty for any other run.
    """
    if recorder.nothing_ran:
        reporter.line(f"disttest: {NOT_RUN}", yellow=True)
    if without_worlds:
        reporter.line(f"disttest: {without_worlds}", yellow=True)
    flaky = recorder.flaky
    if flaky:
        reporter.section("flaky tests")
        for line in flaky.values():
            reporter.line(line)
    green = recorder.false_greens
    if green:
        reporter.section("false greens avoided")
        reporter.line(f"torch's own rules would have passed {len(green)} of the failed tests:")
        for nodeid in green:
            reporter.line(f"  {nodeid}")
    if recorder.vacuous:
        reporter.section("tests that torch passes vacuously here")
        reporter.line("they are skipped: no rank of them would run on this machine")
        for nodeid in recorder.vacuous:
            reporter.line(f"  {nodeid}")
