"""Mutations of functions: which failures would `disttest run --changed` leave out, how many tests would it run, and the cost
of the record.

    python bench/changed.py                                      a package of networkx, 100 mutations
    python bench/changed.py --mutations 1000 --seed 7
    python bench/changed.py --project worlds --mutations 20      tests with 2 ranks

Each mutation changes one expression of one function that a test calls. All tests that are not selected run, and a failure
among them is an escape. Then the selected ones run until one fails. The tests of networkx need no ranks: for each mutation a
fork of this process, which has collected them, gets the changed code. Functions that run at import are left out there, since
their effect is older than the fork; their number is printed.

The aim: 1,000 mutations with at most 5 escapes; a median of 25 % of the tests; the record costs at most 30 % (Python 3.11).
CPU seconds of the run are compared: other processes of the machine do not change them much. The record costs more than that
in Python 3.11 for networkx, which is heavy in calls: +213 % (+12 % in Python 3.12), and +2 % for worlds. That was with its two
slowest modules, which are left out now. Measured: 1,006 mutations of the seeds 1 to 5 (300, 300, 176, 170 and 60) have no escape,
and medians of 9.6 to 10.1 % of 861 tests.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib.util
import itertools
import os
import random
import resource
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import NamedTuple

import msgspec
import pytest

from disttest.cli.stored_run import read_run
from disttest.errors import UsageError
from disttest.extras.changed import sources
from disttest.extras.changed.changes import Repository
from disttest.extras.changed.choice import choose
from disttest.extras.changed.record import Record
from disttest.extras.changed.sources import Sources

LIMIT_S = 600.0
TEST_S = 10
# Without test_distance_measures and test_graph_hashing, which take 85 % of the time of all.
NETWORKX_TESTS = (
    *(
        "boundary",
        "chains",
        "clique",
        "cluster",
        "core",
        "covering",
        "cuts",
        "cycles",
        "dag",
    ),
    *(
        "dominance",
        "efficiency",
        "euler",
        "hierarchy",
        "isolate",
        "link_prediction",
        "matching",
    ),
    *(
        "mis",
        "planarity",
        "reciprocity",
        "regular",
        "richclub",
        "similarity",
        "simple_paths",
        "smetric",
        "swap",
    ),
    *("tournament", "triads", "vitality", "voronoi", "wiener"),
)
WORLDS = {
    "parts.py": """
        import torch

        FILL = 0.0

        def bounds(total, size, rank):
            share = total // size
            extra = total % size
            first = rank * share + min(rank, extra)
            return first, first + share + (1 if rank < extra else 0)

        def split(tensor, size, rank):
            first, last = bounds(len(tensor), size, rank)
            return tensor[first:last]

        def pad(tensor, length):
            missing = length - len(tensor)
            if missing <= 0:
                return tensor
            return torch.cat([tensor, torch.full((missing,), FILL)])

        def buckets(sizes, limit):
            found, current, used = [], [], 0
            for number, size in enumerate(sizes):
                if current and used + size > limit:
                    found.append(current)
                    current, used = [], 0
                current.append(number)
                used += size
            return found + [current] if current else found
    """,
    "comm.py": """
        import torch
        import torch.distributed as dist
        import parts

        def mean(tensor):
            dist.all_reduce(tensor)
            return tensor / dist.get_world_size()

        def gather(tensor, length):
            padded = parts.pad(tensor, length)
            out = [torch.empty(length) for _ in range(dist.get_world_size())]
            dist.all_gather(out, padded)
            return torch.cat(out)

        def share_from(root, value):
            tensor = torch.tensor([value if dist.get_rank() == root else -1.0])
            dist.broadcast(tensor, root)
            return tensor.item()

        def only_last(rank, size):
            if rank == size - 1:
                return finish(rank)
            return None

        def finish(rank):
            return rank * 2 + 1
    """,
    "ring.py": """
        def next_of(rank, size):
            return (rank + 1) % size

        def previous_of(rank, size):
            return (rank - 1) % size

        def order(size):
            seen, at = [], 0
            while at not in seen:
                seen.append(at)
                at = next_of(at, size)
            return seen
    """,
    "conftest.py": """
        import pytest
        import torch
        import parts

        @pytest.fixture(scope="session")
        def whole():
            return torch.arange(7.0)

        @pytest.fixture
        def mine(whole, world):
            return parts.split(whole, world.size, world.rank)
    """,
    "test_parts.py": """
        import pytest
        import torch
        import parts

        def test_bounds():
            assert parts.bounds(7, 2, 0) == (0, 4) and parts.bounds(7, 2, 1) == (4, 7)

        def test_pad():
            assert parts.pad(torch.ones(1), 3).tolist() == [1, 0, 0]
            assert len(parts.pad(torch.ones(4), 3)) == 4

        def test_buckets():
            assert parts.buckets([3, 3, 3, 9, 1], 6) == [[0, 1], [2], [3], [4]]
    """,
    "test_comm.py": """
        import pytest
        import torch
        import comm

        @pytest.mark.world_size(2)
        def test_mean(world):
            assert comm.mean(torch.ones(2) * world.rank).tolist() == [0.5, 0.5]

        @pytest.mark.world_size(2)
        def test_gather(world, mine):
            assert len(mine) == 4 - world.rank
            assert comm.gather(mine, 4).tolist() == [0, 1, 2, 3, 4, 5, 6, 0]

        @pytest.mark.world_size(2)
        def test_share(world):
            assert comm.share_from(1, float(world.rank) + 1) == 2.0

        @pytest.mark.world_size(2)
        def test_last(world):
            assert comm.only_last(world.rank, world.size) == (3 if world.rank else None)
    """,
    "test_ring.py": """
        import pytest
        import ring

        @pytest.mark.parametrize("size", [1, 2, 5])
        def test_order(size):
            assert ring.order(size) == list(range(size))

        @pytest.mark.world_size(2)
        def test_previous(world):
            assert ring.previous_of(world.rank, world.size) == 1 - world.rank
    """,
    ".gitignore": "results*\n__pycache__\n.pytest_cache\n",
}


class Mutation(ast.NodeTransformer):
    """Changes one expression of a function; ``site`` counts the places where that is possible."""

    def __init__(self, chosen: int) -> None:
        self.chosen, self.site = chosen, -1

    def _is_chosen(self) -> bool:
        self.site += 1
        return self.site == self.chosen

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        return ast.UnaryOp(ast.Not(), node) if self._is_chosen() else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Add | ast.Sub) and self._is_chosen():
            node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is int and self._is_chosen():
            return ast.Constant(node.value + 1)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        return ast.Return(ast.Constant(None)) if node.value is not None and self._is_chosen() else node


def bodies(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions and methods of a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from bodies(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node


def mutated(source: str, function: str, chance: random.Random) -> str | None:
    """Return the source with one expression of a function changed; None if it has none."""
    tree = ast.parse(source)
    for name, node in bodies(tree):
        if name == function:
            count = Mutation(-1)
            block = ast.Module(node.body, [])
            count.visit(block)
            if count.site < 0:
                return None
            Mutation(chance.randrange(count.site + 1)).visit(block)
            node.body = block.body
            return ast.unparse(ast.fix_missing_locations(tree))
    return None


def git(folder: Path, *words: str) -> None:
    identity = {f"GIT_{who}_{what}": "b@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=folder, env=os.environ | identity, check=True, capture_output=True)


def make_project(name: str, folder: Path) -> list[str]:
    """Write a project; return the arguments that name its tests."""
    folder.mkdir()
    if name == "worlds":
        for file, text in WORLDS.items():
            (folder / file).write_text(textwrap.dedent(text).lstrip("\n"))
        targets = ["."]
    else:
        package = Path(importlib.util.find_spec("networkx").origin).parent
        shutil.copytree(package, folder / "networkx", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / ".gitignore").write_text("results*\n__pycache__\n.pytest_cache\n")
        (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = '.'\n")
        targets = [f"networkx/algorithms/tests/test_{test}.py" for test in NETWORKX_TESTS]
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "one")
    return targets


def run(folder: Path, targets: list[str], *options: str) -> tuple[float, dict[str, bool]]:
    """Run the tests; return the CPU seconds that it took, and whether each test passed."""
    argv = [sys.executable, "-m", "disttest", "run", *targets, "--results", str(folder / "results"), *options]
    began_s = cpu_s()
    try:
        subprocess.run(
            [*argv, "--deadline", f"{LIMIT_S:g}", "--timeout", str(TEST_S)],
            cwd=folder, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=3 * LIMIT_S,
        )  # fmt: skip
        outcomes = {t.test.nodeid: not t.final.outcome.is_bad for t in read_run(folder / "results").tests}
    except (subprocess.TimeoutExpired, UsageError):
        outcomes = {}
    return cpu_s() - began_s, outcomes


def cpu_s() -> float:
    """Return the CPU seconds of ended processes: the machine may be busy with others."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Outcomes:
    """Plugin of pytest: keeps whether each test passed, and ends tests that take too long."""

    def __init__(self) -> None:
        self.passed: dict[str, bool] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        # CPU time: on a busy machine, tests that take seconds would otherwise fail, and look like escapes.
        signal.signal(signal.SIGPROF, _too_long)
        signal.setitimer(signal.ITIMER_PROF, TEST_S)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and not report.failed


def _too_long(_number: int, _frame: FrameType | None) -> None:
    pytest.fail(f"longer than {TEST_S} s")


RunAll = Callable[["Change | None", set[str]], dict[str, bool]]


class Forks:
    """Plugin of pytest: collects the tests of a project once, and runs them in forks, each with one changed function."""

    def __init__(self, then: Callable[[Forks], None]) -> None:
        self.then = then
        self.at_import: set[tuple[str, str]] = set()
        """File and name of each function that runs while the tests are collected."""
        self.items: list[pytest.Item] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            return (yield)
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, _event: str, _argument: object) -> None:
        self.at_import.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = session.items
        self.then(self)
        return True

    def run(self, change: Change | None, first: set[str]) -> dict[str, bool]:
        """Run the tests of ``first``, then the others until one fails; all of them without a change."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(read)
                with open(write, "wb") as answer:
                    answer.write(msgspec.json.encode(self._outcomes(change, first)))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as answer:
            ready, _, _ = select.select([answer], [], [], 3 * LIMIT_S)
            if not ready:
                os.kill(child, signal.SIGKILL)
            data = answer.read()
        os.waitpid(child, 0)
        return msgspec.json.decode(data) if data else {}

    def _outcomes(self, change: Change | None, first: set[str]) -> dict[str, bool]:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        if change:
            apply(change)
        outcomes = Outcomes()
        config = self.items[0].config
        config.pluginmanager.unregister(config.pluginmanager.getplugin("terminalreporter"))
        config.pluginmanager.register(outcomes)
        for chosen in (True, False):
            items = [item for item in self.items if (item.nodeid in first) is chosen]
            for item, after in itertools.zip_longest(items, items[1:]):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
                if change and not chosen and not outcomes.passed[item.nodeid]:
                    break
        return outcomes.passed


class Change(NamedTuple):
    """The changed source of a file, and the one function that differs."""

    file: Path
    function: str
    source: str


def functions_of(file: Path, name: str) -> list[FunctionType]:
    """Return the function objects of this process that have the code of a function."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is FunctionType
        and each.__code__.co_qualname == name
        and each.__code__.co_filename == str(file)
    ]


def apply(change: Change) -> None:
    """Give the functions of this process their changed code."""
    codes: list[CodeType] = [compile(change.source, str(change.file), "exec")]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    (changed,) = (code for code in codes if code.co_qualname == change.function)
    for function in functions_of(change.file, change.function):
        function.__code__ = changed


def cost_of_record(folder: Path, targets: list[str], rounds: int) -> None:
    """Print the CPU seconds of runs with and without a record, in turn."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * rounds):
        records = number % 2 == 0
        took_s, _ = run(folder, targets, *["--record-coverage"] * records)
        seconds[records].append(took_s)
    plain_s, record_s = (min(seconds[records]) for records in (False, True))
    print(
        f"record: {record_s:.1f} CPU s, without {plain_s:.1f} s: {100 * (record_s / plain_s - 1):+.0f} % (best of {rounds})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--project", choices=["networkx", "worlds"], default="networkx")
    parser.add_argument("--mutations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs that measure the record; 0 measures nothing"
    )
    parser.add_argument(
        "--within", type=float, default=3600.0, help="seconds after which no further mutation starts"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as place:
        folder = Path(place).resolve() / "project"
        targets = make_project(given.project, folder)
        if given.rounds:
            cost_of_record(folder, targets, given.rounds)
        else:
            run(folder, targets, "--record-coverage")
        if given.mutations and given.project == "networkx":
            run_once(folder, targets, lambda forks: measure(folder, given, forks.run, forks.at_import))
        elif given.mutations:
            measure(folder, given, lambda _change, _first: run(folder, targets)[1], set())


def run_once(folder: Path, targets: list[str], then: Callable[[Forks], None]) -> None:
    """Collect the tests of a project in this process, and call ``then`` with them."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.dont_write_bytecode = True
    os.chdir(folder)
    pytest.main([*targets, "-q", "-p", "no:cacheprovider", "--tb", "no"], plugins=[Forks(then)])


def measure(folder: Path, given: argparse.Namespace, run_all: RunAll, skipped: set[tuple[str, str]]) -> None:
    """Mutate functions, and print the escapes.

    Args:
        folder: the project.
        given: the arguments.
        run_all: runs the tests, those in the set first; returns whether each one passed.
        skipped: functions to leave out.
    """
    # One file differs between two selections, and a command parses all files only once.
    sources.parse = functools.cache(sources.parse)
    outcomes = run_all(None, set())
    chance, ends_s = random.Random(given.seed), time.monotonic() + given.within
    record = msgspec.json.decode((folder / "disttest-changed.json").read_bytes(), type=Record)
    parts = {unit[:2] for unit in record.units if unit[1] not in ("", "<module>")}
    called = sorted(unit for unit in parts if unit[0].endswith(".py") and "test" not in unit[0].lower())
    functions = [unit for unit in called if (str(folder / unit[0]), unit[1]) not in skipped]
    print(
        f"{given.project}: {len(record.tests)} tests, {len(called)} functions that they call, "
        f"{len(called) - len(functions)} of them left out, since they run at import",
        flush=True,
    )
    if outcomes.keys() != record.tests.keys():
        raise RuntimeError(f"other tests ran than were recorded: {outcomes.keys() ^ record.tests.keys()}")
    repository = Repository(folder)
    shares, caught, escapes = [], 0, []
    while len(shares) < given.mutations and time.monotonic() < ends_s:
        file, function = chance.choice(functions)
        source = (folder / file).read_text()
        changed = mutated(source, function, chance)
        if changed is None:
            continue
        (folder / file).write_text(changed)
        try:
            selected = selection(repository, record)
            found = run_all(Change(folder / file, function, changed), record.tests.keys() - selected)
        finally:
            (folder / file).write_text(source)
        if not found:  # it had no end
            continue
        failed = {test for test, passed in outcomes.items() if passed and found.get(test) is False}
        shares.append(len(selected) / len(record.tests))
        caught += bool(failed & selected)
        if failed - selected:
            escapes.append(f"{file}::{function}: {', '.join(sorted(failed - selected)[:3])}")
            print(f"escape: {escapes[-1]}", flush=True)
        if len(shares) % 50 == 0:
            print(summary(given.seed, shares, caught, escapes), flush=True)
    print(summary(given.seed, shares, caught, escapes))


def summary(seed: int, shares: list[float], caught: int, escapes: list[str]) -> str:
    """Describe the mutations so far."""
    if not shares:
        return "no mutation ran in time"
    return (
        f"{len(shares)} mutations ran (seed {seed}): {caught} found by selected tests, {len(escapes)} with an escape; "
        f"selected tests: median {100 * statistics.median(shares):.1f} %, mean {100 * statistics.mean(shares):.1f} %"
    )


def selection(repository: Repository, record: Record) -> set[str]:
    """Return the tests that would run, without canaries."""
    files = Sources(repository.root, repository.files())
    environment = record.environments[0]
    changes = repository.changes_since("HEAD", files)
    tests = list(record.tests)
    return set(choose(tests, record, changes, files, environment=environment, canaries=0.0).selected)


if __name__ == "__main__":
    main()
