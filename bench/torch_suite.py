"""torch's own 285 tests (gloo, 2 ranks) and a part of its RPC suites (4 ranks): its harness against ours.

    python bench/torch_suite.py [--suite distributed|rpc] [--select EXPRESSION] [--slots N] [--record]
    python bench/torch_suite.py --suite distributed --slots 4      # two worlds of two ranks side by side
    python bench/torch_suite.py --builds [--select EXPRESSION]     # ours only: torch's CPU build, its CUDA build

Both run in one go on the same machine, one after the other, from the same file; the verdicts are compared test by
test. The quotient of the two times is what counts: seconds say as much about the machine as about the harness. Ours takes turns
with new ranks for each test and with reused ones (``--isolation warm``), three of each; the medians count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from cuda_environment import cuda_environment
from stopwatch import Stopwatch

from disttest.plugins.costs.lines import cost_lines
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, read_events
from tests.compat import harness
from tests.compat.harness import Interpreter, Suite

ISOLATION = {"new": (), "reused": ("--disttest-isolation=warm",)}
"""Ranks of ours -> the options for them."""
TURNS = 3
RPC_SUBSET = "TensorPipeDistAutogradTest and (graph or context or backward_simple or nested)"


def measure(suite: Suite, select: str, folder: Path, *, record: bool) -> None:
    """Run one suite under both and print one line for each, then the quotients."""
    watch = Stopwatch()
    theirs = harness.run_torchs(suite, folder / "torchs", select=select)
    their_s = watch.took().wall_s
    if record:
        harness.record(suite, theirs, spawn=True)
    print(f"{suite.name}: {len(theirs)} tests, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"  torch's harness {their_s:8.1f} s  {count(theirs)}")
    took: dict[str, list[float]] = {name: [] for name in ISOLATION}
    for turn in range(TURNS):
        for name, options in ISOLATION.items():
            place = folder / f"{name}, {turn}"
            watch = Stopwatch()
            ours = harness.run_ours(suite, place, select=select, options=options)
            took[name].append(watch.took().wall_s)
            print(f"  ours, {name:9} {took[name][-1]:8.1f} s  {count(ours)}")
            for line in harness.unexplained(suite, theirs, ours):
                print(f"    {line}")
    for name in ISOLATION:
        print(f"  {their_s / statistics.median(took[name]):.1f} times faster with {name} ranks")
        for fact in cost_lines(fold(read_events(folder / f"{name}, 0" / "results" / FILE_NAME))):
            print(f"    {': '.join(fact)}")


def measure_builds(select: str, folder: Path) -> None:
    """Run ours on the CPU build of torch and on its CUDA build without a GPU, twice in turns; print the quotient.

    The same 285 tests over gloo, the same work: what differs is what the CUDA build costs the forked ranks. Processor time
    says it on a machine that others use, too.
    """
    cuda = cuda_environment()
    interpreters = {"CPU build": None, "CUDA build": Interpreter(str(cuda.python), cuda.environ(0))}
    took: dict[str, list[float]] = {name: [] for name in interpreters}
    used: dict[str, list[float]] = {name: [] for name in interpreters}
    for turn in range(2):
        for name, interpreter in interpreters.items():
            watch = Stopwatch()
            ours = harness.run_ours(
                Suite("distributed", 2), folder / f"{turn} {name}", select=select, interpreter=interpreter
            )
            wall_s, cpu_s, _ = watch.took()
            took[name].append(wall_s)
            used[name].append(cpu_s)
            print(
                f"  {name:12} {took[name][-1]:8.1f} s, {used[name][-1]:8.1f} s of processors  {count(ours)}, "
                f"load {os.getloadavg()[0]:.1f}"
            )
    times, more = (min(of["CUDA build"]) / min(of["CPU build"]) for of in (took, used))
    print(f"  the CUDA build takes {times:.2f} times as long, and {more:.2f} times as much of the processors")


def count(verdicts: harness.Verdicts) -> str:
    """How many of each."""
    kinds = sorted(set(verdicts.values()))
    return ", ".join(f"{sum(v == kind for v in verdicts.values())} {kind}" for kind in kinds)


def main() -> None:
    """Measure both suites."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--select", default="", help="only these of the 285 tests, as pytest's -k has it")
    parser.add_argument("--suite", choices=["distributed", "rpc"], help="only this one (default: both)")
    parser.add_argument(
        "--builds", action="store_true", help="compare the builds of torch, not the harnesses"
    )
    parser.add_argument("--slots", default="", help="slots of ours (default: those of the machine)")
    parser.add_argument(
        "--record", action="store_true", help="keep torch's verdicts on the 285 tests for tests/compat"
    )
    arguments = parser.parse_args()
    if arguments.record and arguments.select:
        parser.error("--record is for all 285 tests: leave --select away")
    if arguments.slots:
        harness.SLOTS = arguments.slots
    with tempfile.TemporaryDirectory() as folder:
        if arguments.builds:
            measure_builds(arguments.select, Path(folder))
            return
        if arguments.suite != "rpc":
            measure(
                Suite("distributed", 2),
                arguments.select,
                Path(folder) / "distributed",
                record=arguments.record,
            )
        if arguments.suite != "distributed":
            measure(Suite("rpc", 4), RPC_SUBSET, Path(folder) / "rpc", record=False)


if __name__ == "__main__":
    main()
