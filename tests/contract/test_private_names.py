"""Each use of a private name of torch, pytest or Python, and each function of theirs that is replaced, says why, and for which
versions it is known to hold."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from matrix import ROWS  # noqa: E402  # tools/ is not a package

PACKAGE = ROOT / "entrypoint" / "disttest"
PINS = (ROOT / "constraints.txt", ROOT / "requirements" / "plugins.lock")
VERSIONS = re.compile(
    r"\b(torch|pytest|Python|pluggy|hypothesis|coverage|glibc) (\d[\d.]*)(?: to (\d[\d.]*))?"
)
OF_THE_MATRIX = {
    name: tuple(".".join(getattr(row, name.lower()).split(".")[:2]) for row in (ROWS[0], ROWS[-1]))
    for name in ("torch", "pytest", "Python")
}
"""Oldest and newest version with which ``make matrix`` runs the tests."""
OF_CUDA = {"_cuda_hasPrimaryContext", "_activate_gpu_trace"}
"""Names that torch's CPU build lacks."""
TO_BE_SET = {
    *("argv", "stdin", "stdout", "stderr", "__stdout__", "__stderr__", "dont_write_bytecode"),
    *("name", "f'__{name}__'"),  # variables
    *("excepthook", "unraisablehook", "breakpointhook", "showwarning"),
    *("allow_tf32", "benchmark", "deterministic", "enabled", "PRINT_OPTS", "nvmlLib"),
}
"""Attributes that their modules let others set."""
MODULES = {
    "dist": "torch.distributed",
    "c10d": "torch.distributed.distributed_c10d",
    "eval_frame": "torch._C._dynamo.eval_frame",
    "resource_tracker": "multiprocessing.resource_tracker",
    **{name: name for name in ("torch", "sys", "threading", "atexit", "logging", "weakref")},
}
"""Modules by the names under which the code imports them."""


class Use(NamedTuple):
    """A line that uses a private name, or replaces a function."""

    path: Path
    line: int
    begins: int
    """Line in which the reason may begin: that of the innermost function, or four above at the top of a module."""

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(PACKAGE)}:{self.line}"


def imported(tree: ast.AST) -> set[str]:
    """Names under which a file imports modules of others; functions may also get them as arguments."""
    found = {"torch", "cuda"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("disttest"):
            found |= {each.asname or each.name for each in node.names}
    return found


def replaced(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Owner and name of each attribute that a statement sets."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Attribute) and not isinstance(each.value, ast.Call):
                    yield each.value, each.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
        yield node.args[0], ast.unparse(node.args[1])


def lines_that_replace(tree: ast.AST) -> set[int]:
    modules = imported(tree)
    found = set()
    for node in ast.walk(tree):
        for owner, name in replaced(node):
            parts = re.split(r"\W+", ast.unparse(owner))
            if parts[0] in modules and not TO_BE_SET & {name, parts[-1]}:
                found.add(node.lineno)
    return found


def uses() -> Iterator[Use]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        functions = [
            (node.lineno, node.end_lineno or 0)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        private = {number for number, line in enumerate(text.splitlines(), 1) if "noqa: SLF001" in line}
        for number in sorted(private | lines_that_replace(tree)):
            around = [begin for begin, end in functions if begin <= number <= end]
            yield Use(path, number, max(around, default=number - 4))


USES = list(uses())


def reason_of(use: Use) -> str:
    """The comments above the line, in its function."""
    lines = use.path.read_text().splitlines()[max(0, use.begins - 1) : use.line]
    return " ".join(line.strip().lstrip("# ") for line in lines if line.lstrip().startswith("# "))


@pytest.mark.parametrize("use", USES, ids=[use.place for use in USES])
def test_a_private_name_or_replacement_has_a_reason_with_versions(use: Use) -> None:
    named = VERSIONS.findall(reason_of(use))
    assert named, f"{use.place}: say in a comment above why, and with which versions it is known to hold"
    for name, oldest, newest in named:
        if why := outdated(name, oldest, newest):
            pytest.fail(f"{use.place}: look at it again, {why}", pytrace=False)


def outdated(name: str, oldest: str, newest: str) -> str:
    """Why the versions in a reason are no longer those in use; empty if they are.

    Args:
        name: torch, pytest, Python, glibc, or a package that the tests pin.
        oldest: the only one, if there is no newest.
        newest: empty if the reason names one version.
    """
    if name in OF_THE_MATRIX:
        first, last = OF_THE_MATRIX[name]
        same = (oldest, newest) == (first, last) if newest else oldest == last
        return "" if same else f"the matrix has {name} {first} to {last}"
    if name == "glibc":  # that of the machine
        return ""
    pinned = re.findall(rf"^{name}==([\d.]+)", "".join(pins.read_text() for pins in PINS), re.MULTILINE)[0]
    return "" if f"{pinned}.".startswith(f"{newest or oldest}.") else f"{name} {pinned} is pinned"


def test_a_newer_version_asks_for_another_look() -> None:
    torch = OF_THE_MATRIX["torch"]

    assert outdated("torch", *torch) == outdated("torch", torch[1], "") == ""
    assert outdated("torch", torch[0], "") == f"the matrix has torch {torch[0]} to {torch[1]}"
    assert outdated("torch", torch[0], "2.10")
    assert outdated("pluggy", "0.1", "").endswith(" is pinned")


def private_chains() -> Iterator[tuple[str, str]]:
    """Place, and dotted name from a module on, of each private attribute that is reached from a module."""
    for path in sorted({use.path for use in USES}):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
            ):
                chain = ast.unparse(node)
                if re.fullmatch(r"[\w.]+", chain) and chain.partition(".")[0] in MODULES:
                    yield str(path.relative_to(PACKAGE)), chain


CHAINS = sorted(set(private_chains()))


@pytest.mark.parametrize(("place", "chain"), CHAINS)
def test_a_private_name_is_there(place: str, chain: str) -> None:
    """With the installed versions; the matrix runs this with others."""
    root, _, rest = chain.partition(".")
    found: object = importlib.import_module(MODULES[root])
    for name in rest.split("."):
        if name in OF_CUDA and not hasattr(found, name):
            return
        assert hasattr(found, name), f"{place}: {chain}"
        found = getattr(found, name)


def test_names_are_looked_at() -> None:
    assert len(USES) > 100
    assert len(CHAINS) > 30
