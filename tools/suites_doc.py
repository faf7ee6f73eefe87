"""Writes docs/suites.md from the docstrings and marks of the suites; with --check, only says whether it is up to date."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from generated_page import write_or_check
from suite_index import ROOT, TestFunction, functions_of

SUITES = ROOT / "suites"
_DEVICES = {"cpu": "the CPU", "cuda": "GPUs"}
HEAD = """# The bundled suites

Made by `make docs` from the docstrings; do not edit. `disttest SUITE` runs one, `disttest list` shows what there is.

A size column of *run* means every world size of the run (without GPUs 1, 2 and 4); *2+* means those from 2 on.
Backends: *any* means the run's own (gloo on the CPU, nccl on GPUs) unless it lacks a feature that the test needs;
the missing features of each backend, with reasons, are the table at the end.

`make mutants` plants faults in torch, over two hundred, one at a time, and names the test that catches each.
"""


def main() -> int:
    """Write the page, or compare it."""
    return write_or_check("suites.md", _page(), __doc__)


def _page() -> Iterator[str]:
    yield HEAD
    for folder in sorted(path.parent for path in SUITES.glob("*/__init__.py")):
        yield from _suite(folder)
    yield from _features()


def _doc(path: Path) -> str:
    return " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())


def _suite(folder: Path) -> Iterator[str]:
    files = sorted(folder.glob("test_*.py"))
    functions = {path: functions_of(path) for path in files}
    yield f"## {folder.name}\n"
    yield f"{_doc(folder / '__init__.py')}\n"
    yield f"{sum(map(len, functions.values()))} tests.\n"
    for path in files:
        yield f"### {folder.name}/{path.name}\n"
        yield f"{_doc(path)}\n"
        yield "| test | asserts | sizes | backends | ids |"
        yield "|---|---|---|---|---|"
        yield from map(_row, functions[path])
        yield ""


def _row(test: TestFunction) -> str:
    asserts = " ".join(test.doc.split()).replace("|", "\\|")
    ids = ", ".join(dict.fromkeys(map(str, test.arguments("covers"))))
    return f"| `{test.name}` | {asserts} | {_sizes(test)} | {_backends(test)} | {ids} |"


def _sizes(test: TestFunction) -> str:
    mark = test.closest("world_size")
    if mark is None:
        return "-"
    if mark.arguments:
        return ", ".join(map(str, mark.arguments))
    least, most = mark.options.get("min"), mark.options.get("max")
    return f"{least or 1}-{most}" if most else f"{least}+" if least else "run"


def _backends(test: TestFunction) -> str:
    only = ", ".join(map(str, test.arguments("backend"))) or "any"
    needs = ", ".join(map(str, test.arguments("needs")))
    return f"{only} with {needs}" if needs else only


def _features() -> Iterator[str]:
    tree = ast.parse((SUITES / "features.py").read_text(encoding="utf-8"))
    yield "## What backends lack\n"
    yield "| feature | lacking in | reason |"
    yield "|---|---|---|"
    named = {
        t.id: n.value
        for n in tree.body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    table = next(
        n.value for n in tree.body if isinstance(n, ast.AnnAssign) and getattr(n.target, "id", "") == "LACKS"
    )
    assert isinstance(table, ast.Dict)
    for key, value in zip(table.keys, table.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(value, ast.Tuple)
        for lack in value.elts:
            call = named[lack.id] if isinstance(lack, ast.Name) else lack
            assert isinstance(call, ast.Call)
            words = [ast.literal_eval(argument) for argument in call.args]
            where = f"{words[0]} on {_DEVICES[words[2]]}" if len(words) > 2 else words[0]
            yield f"| `{key.value}` | {where} | {words[1]} |"


if __name__ == "__main__":
    raise SystemExit(main())
