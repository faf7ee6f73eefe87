"""Runs the suites against each fault and says which were caught, and by which test.

    python -m tests.mutants.run [--world-sizes 2,1,4] [--report FILE] [NAME …]

torch is imported once; each fault gets a process forked from here, in which pytest runs the suite's own files
first and, if these stay green at every world size, the whole suite. Ends with 1 when a fault survived that is not explained.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from disttest.host.compute_threads import import_single_threaded
from disttest.runtime.supervisor.run_supervisor import plugin_arguments

import_single_threaded()  # with threads here, ranks could not be forked: they would be interpreters without the fault

from . import calls, collectives, compiled, ddp, gradients, sharding  # noqa: E402, F401  # they declare the faults
from .faults import FAULTS, Fault, reached  # noqa: E402

_FRAME = re.compile(r"^(\S+\.py:\d+): \w+", re.MULTILINE)
"""A frame of a traceback; where the last one is the fault's, it could not be played, and no test deserves credit."""
SUITES = Path(__file__).resolve().parents[2] / "suites"


class _Planter:
    """The plugin that plants the fault once everything is collected, and notes the first test that notices."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self.caught_by = ""
        self.own_error = ""
        self.ran = 0

    def pytest_collection_finish(self) -> None:
        if self._fault is not None:
            self._fault.plant(self._fault)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.caught_by:
            self.caught_by = report.nodeid
            raised_in = ["", *_FRAME.findall(report.longreprtext)][-1]
            self.own_error = raised_in if "tests/mutants/" in raised_in else ""


def _pytest(fault: Fault | None, targets: list[str], sizes: str, pipe: object) -> None:
    """In a forked child: run, and send the outcome."""
    os.chdir(SUITES)
    planter = _Planter(fault)
    arguments = [*plugin_arguments(), "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    arguments += ["--disttest-world-sizes", sizes, "--disttest-timeout", "15", "--disttest-device", "cpu"]
    with (
        Path(os.devnull).open("w") as null,
        contextlib.redirect_stdout(null),
        contextlib.redirect_stderr(null),
    ):
        code = pytest.main([*arguments, *targets], plugins=[planter])
    pipe.send(Outcome(int(code), planter.caught_by, planter.own_error, planter.ran))  # type: ignore[attr-defined]


class Outcome(NamedTuple):
    """What became of one run."""

    exit_code: int
    """pytest's."""
    caught_by: str
    """The first test that failed."""
    own_error: str
    """Where the fault itself failed, if that is why."""
    ran: int


def run_one(fault: Fault | None, targets: list[str], sizes: str) -> Outcome:
    """Run targets with a fault planted."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_pytest, args=(fault, targets, sizes, theirs))
    process.start()
    theirs.close()
    try:
        outcome: Outcome = ours.recv()
    except EOFError:
        outcome = Outcome(3, "", "", 0)
    process.join()
    return outcome


class Verdict(NamedTuple):
    """What became of one fault."""

    fault: str
    verdict: str
    """caught, survived, equivalent, or broken: it was not played as it was meant."""
    by: str
    """The test that caught it, or what is broken."""
    tests: int
    seconds: float


def judge(fault: Fault, sizes: str) -> Verdict:
    """Try a fault on its own files, then on the whole suite, at each world size, until a test notices."""
    started_s = time.monotonic()
    reached[0] = 0
    ran = 0

    def verdict(kind: str, by: str = "") -> Verdict:
        return Verdict(fault.name, kind, by, ran, round(time.monotonic() - started_s, 1))

    for targets in (fault.suite.split(), [fault.suite.split("/")[0]]):
        for size in sizes.split(","):
            outcome = run_one(fault, targets, size)
            ran += outcome.ran
            if outcome.exit_code not in (0, 1):
                return verdict("broken", f"pytest ended with {outcome.exit_code}")
            if outcome.own_error:
                return verdict("broken", f"{outcome.own_error} in {outcome.caught_by}")
            if outcome.caught_by:
                return verdict("caught", outcome.caught_by)
    if not reached[0]:
        return verdict("broken", "no test reaches what it replaces")
    return verdict("equivalent" if fault.equivalent else "survived")


def main() -> int:
    """Run the faults asked for, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="faults to plant (default: all)")
    parser.add_argument("--world-sizes", default="2,1,4", help="tried in order, until one catches the fault")
    parser.add_argument("--report", type=Path, help="also write the verdicts there, as JSON")
    parser.add_argument("--list", action="store_true", help="only list the faults")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.names or fault.name in options.names]
    if unknown := set(options.names) - {fault.name for fault in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    if options.list:
        for fault in faults:
            print(f"{fault.name:<40} {fault.says}{' (one rank)' if fault.one_rank else ''}")
        return 0
    verdicts = []
    for number, fault in enumerate(faults, 1):
        verdict = judge(fault, options.world_sizes)
        verdicts.append(verdict)
        print(f"[{number}/{len(faults)}] {verdict.verdict:<10} {fault.name:<42} {verdict.by}", flush=True)
    counts = {
        kind: sum(v.verdict == kind for v in verdicts)
        for kind in ("caught", "survived", "equivalent", "broken")
    }
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if options.report:
        options.report.write_text(json.dumps([v._asdict() for v in verdicts], indent=1) + "\n")
    return 1 if counts["survived"] or counts["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
