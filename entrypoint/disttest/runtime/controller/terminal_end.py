"""What stands at the end of pytest's own terminal: what a count alone would not tell."""

from __future__ import annotations

from _pytest.terminal import TerminalReporter

from disttest.results.verdict import NOT_RUN
from disttest.runtime.controller.run_recorder import RunRecorder


def write_end(reporter: TerminalReporter, recorder: RunRecorder, *, without_worlds: str) -> None:
    """Which tests are flaky, which are red here that torch's own harness would have passed, and which it passes vacuously.

    Args:
        reporter: pytest's.
        recorder: of the run.
        without_worlds: what is said of a green run that has used no world; empty for any other.
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
