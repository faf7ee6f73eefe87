"""What the sanitizers cost, over the bundled suites, and what they find in the planted programs.

    python bench/sanitize.py [--turns 5] [--suites ddp,fsdp,…] [--straggle 60] [--markdown] [--only calls|digests|cost|planted]
                             [--tools deadlock,order,…]

Calls: the least that a rank needs for an all_reduce in a group of its own, so that no other rank is waited for.
Digests: what ``values`` needs for the input and output of a call of a megabyte, by dtype: the least of many readings.
Cost: each suite runs with nothing on, with each tool alone and with both of the default; they take turns, each turn begins
with another one, and the figures are ratios within a turn: of the time from the first test to the last verdict, and of the
processor time of the whole tree. Verdicts must be those without tools, and nothing may be found that is not found each time.
Planted: how many of the programs of tests/planted are found as they should be, and how long after its last event a
deadlock is proven. Asserts no time; fails if a verdict changed or an aim is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "entrypoint"), str(HERE / "tests" / "support"), str(HERE / "bench")]

from faults import describe_machine, p99, render
from planted import (
    GOOD,
    GOOD_FOR_ALL,
    HANGS,
    NO_RACES,
    ORDERS,
    RACES,
    TRAPS,
    VALUES,
    VALUES_GOOD,
    VALUES_RUNS,
    Program,
    copy_programs,
    programs_of,
    results_of,
    wrong,
    wrong_divergences,
)

from disttest.model import TestResult
from disttest.plugins.deadlock.proven import proof_of
from disttest.results.events import TestFinished
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events

SUITES = ("collectives", "ddp", "fsdp", "threaded", "rpc")
NO_DEADLOCK, NO_ORDER = ("--deadlock", "off"), ("--sanitize", "off")
DEADLOCK, ORDER, RACE = ("--deadlock", "fail"), ("--sanitize", "order:warn"), ("--sanitize", "race:warn")
NUMBERS = ("--sanitize", "values:warn")
TOOLS: Mapping[str, tuple[str, ...]] = {
    "none": NO_DEADLOCK + NO_ORDER,
    "deadlock": DEADLOCK + NO_ORDER,
    "order": NO_DEADLOCK + ORDER,
    "race": NO_DEADLOCK + RACE,
    "both": DEADLOCK + ORDER,
    "values": NO_DEADLOCK + NUMBERS,
}

PROVEN_SOON_S = 1.5
"""After the last event of a hang; what takes longer is named."""

MEGABYTE = 1 << 18
"""Numbers of 32 bits."""

CALLS = """
import os, time
import pytest, torch
import torch.distributed as dist

@pytest.mark.world_size(2)
def test_calls(world):
    group = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    x, times = torch.ones(int(os.environ["CALL_NUMBERS"])), []
    calls = 50 if x.numel() < 1000 else 2
    for _ in range(200):
        began_s = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(x, group=group)
        times.append((time.perf_counter() - began_s) / calls)
    if world.is_first:
        with open(os.environ["CALL_TIME"], "w") as file:
            file.write(str(min(times)))
"""


class Spent(NamedTuple):
    """What one run of a suite took."""

    tests_s: float
    """From its first test to its last verdict."""
    cpu_s: float
    """Of the command and all its children."""
    verdicts: dict[str, str]
    findings: frozenset[str]


class Planted(NamedTuple):
    """One family of planted programs, and how it is judged."""

    title: str
    modules: tuple[str, ...]
    options: tuple[str, ...]
    check: Callable[[Program, TestResult], str]
    aim: float
    """The share that must come out right."""


def run(targets: Iterable[str], folder: Path, *options: str, **environ: str) -> float:
    """Run the command; results lie in ``folder/results``.

    Returns:
        Processor time of its tree, in seconds.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "disttest", "run", *targets, "--results", str(folder / "results"), *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE / "entrypoint"), str(HERE / "tests" / "support")]),
            **environ,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime


def read_run(folder: Path) -> RunResult:
    return fold(read_events(folder / "results" / FILE_NAME))


def spend(suite: str, options: tuple[str, ...], world_sizes: str) -> Spent:
    """Run a suite once, one world at a time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu_s = run([suite], folder, "--world-sizes", world_sizes, "--slots", world_sizes, *options)
        finished = [e for e in read_events(folder / "results" / FILE_NAME) if isinstance(e, TestFinished)]
        results = [test.final for test in read_run(folder).tests]
    began_s = min(event.result.started_at_s for event in finished if event.result.started_at_s)
    return Spent(
        max(event.at_s for event in finished) - began_s,
        cpu_s,
        {result.nodeid: str(result.outcome) for result in results},
        frozenset(f"{result.nodeid}: {f.kind}: {f.message}" for result in results for f in result.findings),
    )


def measure(suite: str, names: Sequence[str], turns: int, world_sizes: str) -> Iterator[dict[str, Spent]]:
    """Runs of a suite with each choice of tools, in turns that begin with another one each time."""
    for turn in range(turns):
        order = (*names[turn % len(names) :], *names[: turn % len(names)])
        yield {name: spend(suite, TOOLS[name], world_sizes) for name in order}
        print(f"{suite}: turn {turn + 1} of {turns}", file=sys.stderr)


def call_us(options: tuple[str, ...], numbers: int) -> float:
    """Microseconds of an all_reduce of so many numbers that waits for nobody: the least of many."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_calls.py").write_text(CALLS)
        run(["test_calls.py"], folder, *options, CALL_TIME=str(folder / "time"), CALL_NUMBERS=str(numbers))
        return float((folder / "time").read_text()) * 1e6


def call_rows(turns: int) -> Iterator[tuple[str, ...]]:
    """What a collective costs with each choice of tools: the least of all turns."""
    sizes = (4, MEGABYTE)
    measured = [
        {(name, size): call_us(options, size) for name, options in TOOLS.items() for size in sizes}
        for _ in range(turns)
    ]
    yield ("tools", "µs for an all_reduce", "ms for one of a megabyte")
    for name in TOOLS:
        small, large = (min(turn[name, size] for turn in measured) for size in sizes)
        yield (name, f"{small:.1f}", f"{large / 1000:.2f}")


DIGESTED = ("float32", "bfloat16", "float16", "float64", "int64", "uint8")


def digest_rows() -> Iterator[tuple[str, ...]]:
    """What it takes to read a megabyte twice, by dtype."""
    import torch

    from disttest.extras.sanitizers.values.trace_notes import read_tensor

    yield ("dtype", "ms for input and output of a megabyte")
    for name in DIGESTED:
        dtype = getattr(torch, name)
        tensor = torch.randn((1 << 20) // dtype.itemsize).to(dtype)
        read = partial(read_tensor, tensor, most_head=4096)
        yield (name, f"{2000 * min(timeit.repeat(read, number=5, repeat=300)) / 5:.3f}")


def ratio(turns: list[dict[str, Spent]], name: str, what: str) -> str:
    """The median over turns, and between what it lay."""
    ratios = sorted(getattr(turn[name], what) / getattr(turn["none"], what) for turn in turns)
    return f"{statistics.median(ratios):.3f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"


def cost_rows(measured: Mapping[str, list[dict[str, Spent]]]) -> Iterator[tuple[str, ...]]:
    """A row for each suite and choice of tools."""
    yield ("suite", "tests", "tools", "time", "processor time")
    for suite, turns in measured.items():
        for name in sorted(turns[0], key=list(TOOLS).index):
            if name == "none":
                tests_s = statistics.median(turn[name].tests_s for turn in turns)
                cpu_s = statistics.median(turn[name].cpu_s for turn in turns)
                shown = (f"{tests_s:.1f} s", f"{cpu_s:.1f} s")
            else:
                shown = (ratio(turns, name, "tests_s"), ratio(turns, name, "cpu_s"))
            yield (suite, str(len(turns[0][name].verdicts)), name, *shown)


def changed_verdicts(measured: Mapping[str, list[dict[str, Spent]]]) -> Iterator[str]:
    """Tests that come to something else with tools than without."""
    for turns in measured.values():
        for turn in turns:
            for name, spent in turn.items():
                for nodeid, verdict in spent.verdicts.items():
                    if verdict != turn["none"].verdicts.get(nodeid):
                        yield f"{nodeid} with {name}: {verdict}"


FAMILIES = (
    Planted("hangs proven", HANGS, (*DEADLOCK, *NO_ORDER, "--timeout", "20"), Program.check_hang, 57 / 60),
    Planted("traps without a proof", TRAPS, DEADLOCK + NO_ORDER, Program.check_quiet, 1),
    Planted("orders found", ORDERS, ORDER, Program.check_order, 36 / 40),
    Planted("races found", RACES, NO_DEADLOCK + RACE, Program.check_order, 28 / 30),
    Planted("programs without a race, without a finding", (*NO_RACES, *GOOD), RACE, Program.check_quiet, 1),
    Planted("numbers that part found", VALUES, NO_DEADLOCK + NUMBERS, Program.check_values, 25 / 27),
    Planted("right numbers without a finding", VALUES_GOOD, NO_DEADLOCK + NUMBERS, Program.check_quiet, 1),
    Planted(
        "good programs without a finding",
        (*GOOD, *GOOD_FOR_ALL),
        (*DEADLOCK, "--sanitize", "all:warn"),
        Program.check_quiet,
        1,
    ),
)


def seconds_to_proof(result: TestResult) -> float | None:
    """From the moment the last rank began to wait to the proof."""
    deadlock = proof_of(result)
    if deadlock is None or not deadlock.edges:
        return None
    return min(edge.since_s for edge in deadlock.edges)


def try_planted(family: Planted, straggle_s: float, slots: int) -> bool:
    """Run a family, print what came of it, and say whether its aim is reached."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        targets = copy_programs(folder, family.modules)
        run(targets, folder, *family.options, "--slots", str(slots), PLANTED_STRAGGLE_S=str(straggle_s))
        ran = read_run(folder)
    tried = len(programs_of(family.modules))
    missed = wrong(ran, family.modules, family.check)
    right = tried - len(missed)
    print(f"{family.title}: {right} of {tried}", flush=True)
    for name, why in missed.items():
        print(f"  {name}: {why}")
    times = {
        name: s for name, result in results_of(ran).items() if (s := seconds_to_proof(result)) is not None
    }
    if times:
        late = {name: s for name, s in times.items() if s > PROVEN_SOON_S}
        print(
            f"  from the last event to the proof: median {statistics.median(times.values()):.2f} s, "
            f"p99 {p99(list(times.values())):.2f} s; {len(times) - len(late)} within {PROVEN_SOON_S} s"
        )
        for name, s in late.items():
            print(f"    {name}: {s:.1f} s")
    return right >= family.aim * tried


def try_partings(slots: int) -> bool:
    """Run what differs from run to run twice, and say whether the first difference is found in each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        targets = copy_programs(folder, VALUES_RUNS)
        for fault, results in (("", "right"), ("1", "astray")):
            run(targets, folder, *NO_DEADLOCK, *NUMBERS, "--slots", str(slots), PLANTED_FAULT=fault)
            (folder / "results").rename(folder / results)
        missed = wrong_divergences(folder / "right", folder / "astray")
    programs = programs_of(VALUES_RUNS)
    print(f"first differences of two runs found: {len(programs) - len(missed)} of {len(programs)}")
    for name, why in missed.items():
        print(f"  {name}: {why}")
    return not missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--suites", default=",".join(SUITES), help="names with commas between them")
    parser.add_argument(
        "--tools", type=lambda text: text.split(","), default=[name for name in TOOLS if name != "none"]
    )
    parser.add_argument("--world-size", default="2")
    parser.add_argument(
        "--straggle", type=float, default=2, help="seconds for which traps look like a deadlock"
    )
    parser.add_argument("--slots", type=int, default=8, help="of the planted programs")
    parser.add_argument("--only", choices=("calls", "digests", "cost", "planted"))
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    before = describe_machine()
    reached, changed = True, []
    if arguments.only in (None, "calls"):
        print(render(list(call_rows(arguments.turns)), markdown=arguments.markdown), end="\n\n")
    if arguments.only in (None, "digests"):
        print(render(list(digest_rows()), markdown=arguments.markdown), end="\n\n")
    if arguments.only in (None, "cost"):
        measured = {
            suite: list(measure(suite, ("none", *arguments.tools), arguments.turns, arguments.world_size))
            for suite in arguments.suites.split(",")
        }
        changed = sorted(set(changed_verdicts(measured)))
        print(f"{arguments.turns} turns; before: {before}; after: {describe_machine()}\n")
        print(render(list(cost_rows(measured)), markdown=arguments.markdown), end="\n\n")
        found = {
            f
            for turns in measured.values()
            for turn in turns
            for spent in turn.values()
            for f in spent.findings
        }
        print(
            "\n".join(
                [f"{len(changed)} verdicts changed", *changed, f"{len(found)} findings", *sorted(found)]
            )
        )
    if arguments.only in (None, "planted"):
        tried = [try_planted(family, arguments.straggle, arguments.slots) for family in FAMILIES]
        reached = all([*tried, try_partings(arguments.slots)])
    return 0 if reached and not changed else 1


if __name__ == "__main__":
    sys.exit(main())
