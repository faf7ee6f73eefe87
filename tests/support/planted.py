"""Planted programs (tests/planted): what a tool must find in each stands beside the program, as data.

Shared by the programs, the tests that run them and bench/sanitize.py.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from disttest.extras.sanitizers.values.divergence import Divergence, find_divergence
from disttest.extras.sanitizers.values.values_file import pairs, read_recordings
from disttest.model import Outcome, PluginFinding, TestResult, rank_names
from disttest.plugins.deadlock.proven import proof_of
from disttest.results.fold import RunResult

if TYPE_CHECKING:  # the programs find this module alone
    from lab import Ended, Lab

PROVEN = "deadlock: rank"
FOLDER = Path(__file__).parents[1] / "planted"
_PREFIX = "planted_"
"""Of the modules of programs, as they are loaded here."""
HANGS = (
    "hangs_collectives",
    "hangs_messages",
    "hangs_models",
    "hangs_late",
    "hangs_training",
    "hangs_exchanges",
)
TRAPS = ("traps", "traps_helpers")
HANGS_ON_DEVICES = ("hangs_devices",)
TRAPS_ON_DEVICES = ("traps_devices",)
ORDERS = ("orders", "orders_models", "orders_exchanges")
GOOD = ("good",)
GOOD_FOR_ALL = ("good_training", "good_exchanges")
LOSSES = ("losses",)
SILENCES = ("silences",)
SURVIVORS = ("survivors",)
RACES = ("races", "races_training")
NO_RACES = ("races_none",)
RACES_ON_DEVICES = ("races_devices",)
NO_RACES_ON_DEVICES = ("races_devices_none",)
VALUES = ("values", "values_training")
VALUES_GOOD = ("values_good",)
VALUES_RUNS = ("values_runs",)
"""Modules of tests/planted, by what is planted in them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One program, and what must be found in it."""

    name: str
    module: str
    """The module of tests/planted that has it."""
    kind: str
    """What is wrong with it; programs of one kind go wrong in the same way."""
    size: int
    """Number of ranks."""
    ranks: tuple[int, ...]
    """A hang: the ranks that wait for ever. An order: those whose calls do not fit, of whom the
    finding shows some. Empty: nothing may be found."""
    says: tuple[str, ...]
    """Words of the finding's message."""
    report: str
    """A report of a user that tells of it, as ``owner/repository#number``; empty if it follows none."""

    def check_hang(self, result: TestResult) -> str:
        """Why its deadlock is not proven as it should be; empty if it is."""
        deadlock = proof_of(result)
        if deadlock is None or not result.message.startswith(PROVEN):
            return f"no proof: {result.outcome}, {result.message}"
        waits = tuple(sorted({edge.rank for edge in deadlock.edges}))
        if waits != self.ranks:
            return f"ranks {waits} wait, not {self.ranks}: {result.message}"
        lines = [edge.where for edge in deadlock.edges]
        if not all(line.startswith(f"{self.module}.py:") for line in lines):
            return f"they wait at {lines}: {result.message}"
        return self._lacks(result.message, *(edge.what for edge in deadlock.edges))

    def check_order(self, result: TestResult) -> str:
        """Why no finding is the one that should be; empty if one is."""
        reasons = [self._check_finding(finding) for finding in result.findings]
        return (
            "" if "" in reasons else "; ".join(reasons) or f"no finding: {result.outcome}, {result.message}"
        )

    def check_breach(self, results: Iterable[TestResult]) -> str:
        """Why none of the results of its faults is the breach that should be found; empty if one is."""
        kinds = {finding.kind: finding.message for result in results for finding in result.findings}
        return "" if self.kind in kinds else f"not {self.kind}: {kinds}"

    def _check_finding(self, finding: PluginFinding) -> str:
        ranks = {calls.rank for calls in finding.orders}
        if finding.kind != self.kind or ranks.isdisjoint(self.ranks):
            return f"{finding.kind} of ranks {sorted(ranks)}: {finding.message}"
        calls = (call.what for rank in finding.orders for call in rank.calls)
        return self._lacks(finding.message, *calls)

    def check_values(self, result: TestResult) -> str:
        """Why no finding is the one that should be, at the line that is marked; empty if one is."""
        reasons = [self._check_values(finding) for finding in result.findings]
        return (
            "" if "" in reasons else "; ".join(reasons) or f"no finding: {result.outcome}, {result.message}"
        )

    def _check_values(self, finding: PluginFinding) -> str:
        lines = {call.line for rank in finding.orders for call in rank.calls if call.decides}
        whose = re.compile(rf"\b{rank_names(self.ranks)}(?![,\d])")
        if finding.kind != self.kind or not whose.search(finding.message):
            return f"{finding.kind}: {finding.message}"
        if not lines & marked_lines(self.module):
            return f"at lines {sorted(lines)}: {finding.message}"
        return self._lacks(finding.message)

    def check_divergence(self, divergence: Divergence | None) -> str:
        """Why two runs do not part as they should; empty if they do."""
        if divergence is None:
            return "they are the same"
        lines = {int(line) for line in re.findall(rf"{self.module}\.py:(\d+)", divergence.message)}
        if divergence.rank not in self.ranks or not lines & marked_lines(self.module):
            return f"rank {divergence.rank}: {divergence.message}"
        return self._lacks(divergence.message)

    def check_quiet(self, result: TestResult) -> str:
        """What has been found, or has gone wrong, where nothing should; empty if nothing has."""
        if result.outcome not in (Outcome.PASSED, Outcome.XFAILED):
            return f"{result.outcome}: {result.message}"
        return "; ".join(finding.message for finding in result.findings)

    def _lacks(self, *texts: str) -> str:
        said = _plain(" ".join(texts))
        lacking = [word for word in self.says if _plain(word) not in said]
        return f"says nothing of {', '.join(lacking)}: {texts}" if lacking else ""


def marked_lines(module: str) -> set[int]:
    """The lines of a module that end in ``# seen``."""
    lines = (FOLDER / f"{module}.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# seen")}


def _plain(text: str) -> str:
    return text.lower().replace("_", "").replace("-", "").replace(" ", "")


def hangs(
    kind: str, *, size: int, waits: Iterable[int], says: str | tuple[str, ...], report: str = ""
) -> Callable[[Any], Any]:
    """Declare a program that hangs: these ranks wait for ever, and the finding has these words."""
    return _declare(kind, size, waits, says, report)


def disagrees(
    kind: str, *, size: int, ranks: Iterable[int], says: str | tuple[str, ...], report: str = ""
) -> Callable[[Any], Any]:
    """Declare a program that passes over gloo though the calls of these ranks do not fit together."""
    return _declare(kind, size, ranks, says, report)


def breaks(kind: str, *, report: str = "") -> Callable[[Any], Any]:
    """Declare a program of two ranks that breaks its contract when one of them is lost."""
    return _declare(kind, 2, (), (), report)


def parts(
    kind: str, *, size: int, ranks: Iterable[int], says: str | tuple[str, ...], report: str = ""
) -> Callable[[Any], Any]:
    """Declare a program that passes though these ranks have other numbers than they should."""
    return _declare(kind, size, ranks, says, report)


def goes_astray(says: str, *, size: int, rank: int, report: str = "") -> Callable[[Any], Any]:
    """Declare a program that differs from run to run, first on this rank, in what has these words."""
    return _declare("run", size, (rank,), says, report)


def fine(kind: str, *, size: int, report: str = "") -> Callable[[Any], Any]:
    """Declare a program in which nothing may be found."""
    return _declare(kind, size, (), (), report)


def _declare(
    kind: str, size: int, ranks: Iterable[int], says: str | tuple[str, ...], report: str
) -> Callable[[Any], Any]:
    words = (says,) if isinstance(says, str) else says

    def declare(function: Any) -> Any:
        function.program = Program(
            name=function.__name__,
            module=function.__module__.removeprefix(_PREFIX),
            kind=kind,
            size=size,
            ranks=tuple(ranks),
            says=words,
            report=report,
        )
        return pytest.mark.world_size(size)(function)

    return declare


def programs_of(modules: Iterable[str]) -> dict[str, Program]:
    """The programs of these modules, by the names of their tests."""
    found: dict[str, Program] = {}
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # they import each other
    for module in modules:
        for value in vars(_load(module)).values():
            program = getattr(value, "program", None)
            if isinstance(program, Program):
                if program.name in found:
                    raise ValueError(f"two planted programs are called {program.name}")
                found[program.name] = program
    return found


def _load(module: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{_PREFIX}{module}", FOLDER / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def run_on_devices(lab: Lab, modules: Sequence[str], *options: str, limit_s: float) -> Ended:
    """Run the programs of these modules in a laboratory with emulated GPUs."""
    shutil.copy(__file__, lab.folder)  # what the programs import
    return lab.run("run", *copy_programs(lab.folder, modules), "--timeout", "60", *options, limit_s=limit_s)


def results_of(run: RunResult) -> dict[str, TestResult]:
    """What each program came to, by the name of its test."""
    return {test.test.nodeid.rpartition("::")[2].partition("[")[0]: test.final for test in run.tests}


def wrong(
    run: RunResult, modules: Iterable[str], check: Callable[[Program, TestResult], str]
) -> dict[str, str]:
    """The programs of these modules that did not come out as they should, and why."""
    programs, results = programs_of(modules), results_of(run)
    return {name: why for name, program in programs.items() if (why := check(program, results[name]))}


def harmed_results_of(run: RunResult) -> dict[str, list[TestResult]]:
    """What each program came to under each fault, by the name of its test."""
    found: dict[str, list[TestResult]] = {}
    for test in run.tests:
        found.setdefault(test.test.nodeid.rpartition("::")[2].partition("[")[0], []).append(test.final)
    return found


def wrong_divergences(right: Path, astray: Path) -> dict[str, str]:
    """The programs that differ from run to run, of which two runs do not part as they should, and why.

    Args:
        right: results of a run without the faults.
        astray: with them.
    """
    programs = programs_of(VALUES_RUNS)
    wrong = dict.fromkeys(programs, "it was not recorded twice")
    for one, other in pairs(read_recordings(right), read_recordings(astray)):
        name = one.base.rpartition("::")[2]
        wrong[name] = programs[name].check_divergence(find_divergence(one, other, None))
    return {name: why for name, why in wrong.items() if why}


def divergences(one: Path, other: Path) -> dict[str, str]:
    """Where programs differ between two runs, by the names of their tests."""
    return {
        mine.base.rpartition("::")[2]: divergence.message
        for mine, yours in pairs(read_recordings(one), read_recordings(other))
        if (divergence := find_divergence(mine, yours, None)) is not None
    }


def copy_programs(folder: Path, modules: Iterable[str]) -> list[str]:
    """Put all modules where a run finds them without the settings of this repository; the file names of these."""
    for file in FOLDER.glob("*.py"):
        shutil.copy(file, folder)
    return [f"{module}.py" for module in modules]
