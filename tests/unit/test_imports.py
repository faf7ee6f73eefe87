"""What tests, benches, tools, suites and examples import of the product is there: no type checker reads them."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import disttest.testing.threads  # noqa: F401  # what it imports of torch asks a process for the machine's name

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "examples", "suites", "tests", "tools")


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of each import of ours in a file."""
    text = path.read_text()
    if not re.search(r"^\s*from disttest\b", text, re.MULTILINE):
        return  # parsing each file takes most of the time
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "disttest":
            yield from ((str(node.module), alias.name) for alias in node.names)


@functools.cache
def is_there(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.slow("parses all tests and tools, and imports the product")
def test_all_that_is_imported_is_there():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    missing = [
        f"{file.relative_to(ROOT)}: {module}.{name}"
        for file in files
        if "node_modules" not in file.parts
        for module, name in imports_of(file)
        if not is_there(module, name)
    ]
    assert missing == []
