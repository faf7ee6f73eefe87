"""Counts the structure of the product: names used twice, long functions and modules, lines. For people, not for CI.

    python tools/metrics.py [FOLDER]        (default: entrypoint/disttest)

Reads sources only (AST). A name counts as used twice when two modules define a class of that name, or two files have it.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LONG_FUNCTION = 50
LONG_MODULE = 400

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One source file."""

    path: Path
    lines: int
    tree: ast.Module


def read_modules(folder: Path) -> list[Module]:
    """Every module below a folder."""
    sources = ((path, path.read_text()) for path in sorted(folder.rglob("*.py")))
    return [Module(path, text.count("\n"), ast.parse(text)) for path, text in sources]


def functions(modules: list[Module]) -> Iterator[Function]:
    """Every function and method."""
    for module in modules:
        yield from (node for node in ast.walk(module.tree) if isinstance(node, Function))


def lines_of(function: Function) -> int:
    """From its first line to its last, decorators left out."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def used_twice(names: Iterator[str]) -> list[str]:
    """Names that occur more than once."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def class_names(modules: list[Module]) -> Iterator[str]:
    """Names of classes that a module defines at its top."""
    for module in modules:
        yield from (node.name for node in module.tree.body if isinstance(node, ast.ClassDef))


def documented_share(modules: list[Module]) -> float:
    """The part of public functions and methods that has a docstring, from 0 to 1."""
    public = [function for function in functions(modules) if not function.name.startswith("_")]
    return sum(ast.get_docstring(function) is not None for function in public) / max(len(public), 1)


def rows(modules: list[Module]) -> Iterator[tuple[str, str, list[str]]]:
    """Counter, its value, and what it counted where that helps."""
    lengths = [lines_of(function) for function in functions(modules)]
    long_functions = sum(length > LONG_FUNCTION for length in lengths)
    long_modules = [f"{m.path} ({m.lines})" for m in modules if m.lines > LONG_MODULE]
    classes = used_twice(class_names(modules))
    files = used_twice(module.path.name for module in modules if module.path.name != "__init__.py")
    yield "lines", f"{sum(module.lines for module in modules)}", []
    yield "modules", f"{len(modules)}", []
    yield f"modules over {LONG_MODULE} lines", f"{len(long_modules)}", long_modules
    yield "functions", f"{len(lengths)}", []
    yield "median lines of a function", f"{statistics.median(lengths):g}", []
    yield f"functions over {LONG_FUNCTION} lines", f"{100 * long_functions / len(lengths):.1f} %", []
    yield "class names used twice", f"{len(classes)}", classes
    yield "file names used twice", f"{len(files)}", files
    yield "public functions documented", f"{100 * documented_share(modules):.0f} %", []


def main() -> None:
    """Print the counters."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "entrypoint" / "disttest"
    for name, value, what in rows(read_modules(folder)):
        print(f"{name:<34}{value:>8}  {', '.join(what)}")


if __name__ == "__main__":
    main()
