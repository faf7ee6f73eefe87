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
import sys
import time
from pathlib import Path

import pytest

from disttest.host.threads import import_single_threaded
from disttest.running.guard import plugin_arguments

import_single_threaded()  # with threads here, ranks could not be forked: they would be interpreters without the fault

from . import calls, collectives, compiled, ddp, gradients, sharding  # noqa: E402, F401  # they declare the faults
from .faults import FAULTS, Fault  # noqa: E402

SUITES = Path(__file__).resolve().parents[2] / "suites"


class _Verdict:
    """The plugin that plants the fault once everything is collected, and notes the first test that notices."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self.caught_by = ""
        self.ran = 0

    def pytest_collection_finish(self) -> None:
        if self._fault is not None:
            self._fault.plant(self._fault)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.caught_by:
            self.caught_by = report.nodeid


def _pytest(fault: Fault | None, targets: list[str], sizes: str, pipe: object) -> None:
    """In a forked child: run, and send (exit code, first failing test, tests run)."""
    os.chdir(SUITES)
    verdict = _Verdict(fault)
    arguments = [*plugin_arguments(), "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    arguments += ["--disttest-world-sizes", sizes, "--disttest-timeout", "15", "--disttest-device", "cpu"]
    with (
        Path(os.devnull).open("w") as null,
        contextlib.redirect_stdout(null),
        contextlib.redirect_stderr(null),
    ):
        code = pytest.main([*arguments, *targets], plugins=[verdict])
    pipe.send((int(code), verdict.caught_by, verdict.ran))  # type: ignore[attr-defined]


def run_one(fault: Fault | None, targets: list[str], sizes: str) -> tuple[int, str, int]:
    """Run targets with a fault planted; (pytest's exit code, first failing test, tests run)."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_pytest, args=(fault, targets, sizes, theirs))
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        answer = (3, "", 0)
    process.join()
    return answer


def judge(fault: Fault, sizes: str) -> dict[str, object]:
    """Caught, survived or broken, by which test, at which world size."""
    suite = fault.suite.split("/")[0]
    started_s = time.monotonic()
    ran = 0
    for targets in (fault.suite.split(), [suite]):
        for size in sizes.split(","):
            code, test, count = run_one(fault, targets, size)
            ran += count
            if code not in (0, 1):
                return {
                    "fault": fault.name,
                    "verdict": "broken",
                    "by": f"pytest ended with {code}",
                    "tests": ran,
                }
            if test:
                spent = round(time.monotonic() - started_s, 1)
                return {"fault": fault.name, "verdict": "caught", "by": test, "tests": ran, "seconds": spent}
    return {
        "fault": fault.name,
        "verdict": "equivalent" if fault.equivalent else "survived",
        "by": "",
        "tests": ran,
    }


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
        print(
            f"[{number}/{len(faults)}] {verdict['verdict']:<10} {fault.name:<42} {verdict['by']}", flush=True
        )
    counts = {
        kind: sum(v["verdict"] == kind for v in verdicts)
        for kind in ("caught", "survived", "equivalent", "broken")
    }
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if options.report:
        options.report.write_text(json.dumps(verdicts, indent=1) + "\n")
    return 1 if counts["survived"] or counts["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
