"""Changes the product at random places, one at a time, and lists the changes that its unit tests do not notice.

    python -m tests.mutants.product [--count 150] [--seed 1] [--report FILE] [--below runtime/world]

A changed module is tried on the unit and contract tests that import it or have its name (the rules of ``tools/touched.py``),
in a process forked from here with torch imported. A change that they miss may still fail a test with real ranks.
The tests run on a copy of the repository: the working tree keeps its files.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.touched import PACKAGE, ROOT, rule_for

LIMIT_S = 120
PROCESSOR_S = 30
"""Processor time of the tests of one mutant: a condition that never becomes true loops for ever."""
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,  # codespell:ignore
    ast.NotIn: ast.In,  # codespell:ignore
}
_SUMS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}


class Mutant(NamedTuple):
    """A change of one module."""

    file: Path
    """Below the package."""
    line: int
    start: int
    """Offset of the first byte that is replaced."""
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {' '.join(self.before.split())} -> {self.after}"


def _expression(node: ast.expr) -> ast.expr | None:
    """The wrong form of an expression."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OPPOSITE:
            return ast.Compare(node.left, [_OPPOSITE[type(op)]()], node.comparators)
        case ast.BoolOp(op=op):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.BinOp(op=op) if type(op) in _SUMS and not isinstance(
            node.right, ast.Constant | ast.JoinedStr
        ):
            return ast.BinOp(node.left, _SUMS[type(op)](), node.right)
        case ast.Constant(value=bool() as value):
            return ast.Constant(not value)
        case ast.Constant(value=int() as value):
            return ast.Constant(value + 1)
        case ast.IfExp():
            return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    return None


def wrong_form(node: ast.AST) -> str | None:
    """The text that replaces a node; None for a node that stays."""
    match node:
        case ast.Expr(value=ast.Call()):
            return "pass"  # the call is left out
        case ast.Continue():
            return "break"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return "return None"
        case ast.expr() if (changed := _expression(node)) is not None:
            return f"({ast.unparse(changed)})"
    return None


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run: no annotations, no assertions, no imports for types alone, no inner parts of f-strings."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns") or isinstance(node, ast.Assert | ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            ):
                yield from _nodes(child)


def mutants_of(source: bytes, file: Path) -> list[Mutant]:
    """All changes of a module that this script knows."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _nodes(ast.parse(source)):
        if (after := wrong_form(node)) is not None and isinstance(node, ast.expr | ast.stmt):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            found.append(Mutant(file, node.lineno, start, end, source[start:end].decode(), after))
    return found


def chosen(count: int, seed: int, below: str) -> list[Mutant]:
    """Random changes of the package; the same seed gives the same ones for the same source."""
    files = sorted(PACKAGE.joinpath(below).rglob("*.py"))
    every = [each for file in files for each in mutants_of(file.read_bytes(), file.relative_to(PACKAGE))]
    return random.Random(seed).sample(every, min(count, len(every)))


def near_tests(file: Path) -> list[str]:
    """Unit and contract tests that import a module, or have its name; importing ones first."""
    tests = [
        each for kind in ("unit", "contract") for each in sorted((ROOT / "tests" / kind).rglob("test_*.py"))
    ]
    found = {test: rule for test in tests if (rule := rule_for(test, PACKAGE / file)) is not None}
    return [str(test.relative_to(ROOT)) for test in sorted(found, key=lambda test: -found[test])]


def run(
    copy: Path,
    arguments: Sequence[str],
    limit_s: float = LIMIT_S,
    processor_s: int = PROCESSOR_S,
    plugins: Sequence[object] = (),
) -> int:
    """The exit status of pytest in a fork; -1 after the time limit, which counts as noticed."""
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
        os.chdir(copy)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        with contextlib.suppress(BaseException):
            os._exit(int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=plugins)))
        os._exit(99)
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


class Verdict(NamedTuple):
    """The outcome of one mutant."""

    mutant: Mutant
    verdict: str
    """killed, survived, or untested: no unit test is near."""


class _Failed:
    """The plugin that notes which tests fail."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._notes.open("a") as file:
                file.write(report.nodeid + "\n")


class Trial:
    """Tries mutants on a copy of the repository."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        notes = copy / "failed"
        notes.touch()
        run(
            copy,
            ["tests/unit", "tests/contract"],
            limit_s=20 * LIMIT_S,
            processor_s=20 * PROCESSOR_S,
            plugins=[_Failed(notes)],
        )
        self._arguments = [f"--deselect={each}" for each in notes.read_text().splitlines()]
        """Tests that fail in the copy anyway (some ask git) notice nothing."""

    def judge(self, mutant: Mutant) -> Verdict:
        """Run the tests near a mutant."""
        tests = near_tests(mutant.file)
        if not tests:
            return Verdict(mutant, "untested")
        file = self._copy / PACKAGE.relative_to(ROOT) / mutant.file
        source, stat = file.read_bytes(), file.stat()
        file.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
        try:
            code = run(self._copy, ["-x", *self._arguments, *tests])
            return Verdict(mutant, "killed" if code else "survived")
        finally:
            file.write_bytes(source)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # compiled files stay valid


def _copied(folder: Path) -> None:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def table_of(verdicts: Sequence[Verdict]) -> str:
    """The counts of each ring of the product, and of all."""
    rows = ["| faults in | planted | killed | survived | no test near |", "|---|---|---|---|---|"]
    for ring in ("core", "plugins", "extras", "all"):
        own = [each.verdict for each in verdicts if ring in ("all", _ring_of(each.mutant.file))]
        counts = [own.count(kind) for kind in ("killed", "survived", "untested")]
        rows.append(f"| {ring} | {len(own)} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows)


def _ring_of(file: Path) -> str:
    return file.parts[0] if file.parts[0] in ("plugins", "extras") else "core"


def main() -> int:
    """Try random mutants, print the survivors and the share that was killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--below", default="", help="only modules of this folder of the package")
    parser.add_argument("--report", type=Path, help="write the survivors there")
    options = parser.parse_args()
    mutants = chosen(options.count, options.seed, options.below)
    os.nice(5)
    importlib.import_module("torch")  # once, here: the tests of each mutant run in a fork
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        _copied(copy)
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", str(copy / "entrypoint"), str(copy / "tests")],
            check=False,
        )
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(copy / "entrypoint"))
        os.environ["PYTHONPATH"] = str(copy / "entrypoint")  # of the programs that contract tests start
        trial = Trial(copy)
        for number, mutant in enumerate(mutants, 1):
            verdicts.append(trial.judge(mutant))
            print(f"[{number}/{len(mutants)}] {verdicts[-1].verdict:<9} {mutant}", flush=True)
    print(table_of(verdicts))
    if options.report:
        left = sorted(str(each.mutant) for each in verdicts if each.verdict == "survived")
        options.report.write_text("\n".join([f"seed {options.seed}", *left]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
