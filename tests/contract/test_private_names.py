"""Each use of a private name of torch, pytest or Python says why, and for which versions it is known to hold."""

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
MODULES = {
    "dist": "torch.distributed",
    "c10d": "torch.distributed.distributed_c10d",
    "eval_frame": "torch._C._dynamo.eval_frame",
    "resource_tracker": "multiprocessing.resource_tracker",
    **{name: name for name in ("torch", "sys", "threading", "atexit", "logging", "weakref")},
}
"""Modules by the names under which the code imports them."""


class Use(NamedTuple):
    """A line that uses a private name."""

    path: Path
    line: int
    begins: int
    """Line in which the reason may begin: that of the innermost function, or four above at the top of a module."""

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(PACKAGE)}:{self.line}"


def uses() -> Iterator[Use]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if "noqa: SLF001" not in text:
            continue
        functions = [
            (node.lineno, node.end_lineno or 0)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for number, line in enumerate(text.splitlines(), 1):
            if "noqa: SLF001" in line:
                around = [begin for begin, end in functions if begin <= number <= end]
                yield Use(path, number, max(around, default=number - 4))


USES = list(uses())


def reason_of(use: Use) -> str:
    """The comments above the line, in its function."""
    lines = use.path.read_text().splitlines()[max(0, use.begins - 1) : use.line]
    return " ".join(line.strip().lstrip("# ") for line in lines if line.lstrip().startswith("# "))


@pytest.mark.parametrize("use", USES, ids=[use.place for use in USES])
def test_a_private_name_has_a_reason_with_versions(use: Use) -> None:
    named = VERSIONS.findall(reason_of(use))
    assert named, f"{use.place}: say in a comment above why, and with which versions it is known to hold"
    for name, oldest, newest in named:
        if newest and name in OF_THE_MATRIX:
            assert (oldest, newest) == OF_THE_MATRIX[name], (
                f"{use.place}: look at it with the matrix's {name}"
            )


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
