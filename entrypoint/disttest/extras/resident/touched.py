"""Which test files a saved file touches: those that lead to it by their imports, directly or through others.

Nothing is imported to find out. A name stands for each file that may be meant by it, wherever it lies below the folder: too
many tests are run rather than too few. Names in texts count too (``importlib.import_module("models.step")``, ``"worker.py"``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def read_names(path: Path) -> frozenset[str]:
    """What a file may mean others by: modules, and names of files; none where it cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()
    return frozenset(name for node in ast.walk(tree) for name in _names_in(node))


def _names_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=aliases):
            yield from (alias.name for alias in aliases)
        case ast.ImportFrom(module=module, names=aliases):
            yield from filter(None, [module])
            yield from (f"{module}.{alias.name}" if module else alias.name for alias in aliases)
        case ast.Constant(value=str(text)) if len(text) < 200:
            yield text


def find_touched(
    saved: Sequence[Path], tests: Sequence[Path], names: Mapping[Path, frozenset[str]]
) -> frozenset[Path] | None:
    """The test files that lead to a saved file; None where one leads nowhere, so that nobody knows whom it concerns.

    Args:
        saved: files that are new, changed or gone.
        tests: files that have tests.
        names: of each Python file, what it may mean others by.
    """
    meant_by = _importers({*names, *saved}, names)
    touched: set[Path] = set()
    for path in saved:
        reached = _closure(path, meant_by)
        found = {test for test in tests if test in reached or _is_conftest_of(reached, test)}
        if not found:
            return None
        touched |= found
    return frozenset(touched)


def _importers(files: set[Path], names: Mapping[Path, frozenset[str]]) -> dict[Path, set[Path]]:
    """File -> the files that mean it."""
    called: dict[str, set[Path]] = {}
    for path in files:
        for name in _called(path):
            called.setdefault(name, set()).add(path)
    found: dict[Path, set[Path]] = {}
    for importer, meant in names.items():
        for name in meant:
            for path in called.get(name, ()):
                found.setdefault(path, set()).add(importer)
    return found


def _called(path: Path) -> Iterator[str]:
    """All names by which a file may be meant: ``c``, ``b.c``, ``a.b.c``, ``c.py``, ``b/c.py``."""
    parts = path.parts if path.stem != "__init__" else path.parent.parts
    module = [*parts[:-1], Path(parts[-1]).stem] if parts else []
    for start in range(len(module)):
        yield ".".join(module[start:])
    for start in range(len(path.parts)):
        yield "/".join(path.parts[start:])


def _closure(path: Path, meant_by: Mapping[Path, set[Path]]) -> set[Path]:
    reached, fresh = {path}, [path]
    while fresh:
        new = meant_by.get(fresh.pop(), set()) - reached
        reached |= new
        fresh += new
    return reached


def _is_conftest_of(reached: set[Path], test: Path) -> bool:
    return any(path.name == "conftest.py" and test.is_relative_to(path.parent) for path in reached)
