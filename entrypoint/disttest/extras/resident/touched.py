"""Find the test files that a saved file affects: those that import it, directly or through others.

The sources are read and nothing is imported. A name may mean any file of that name below the folder, so too many tests
are run rather than too few. Names in strings count too (``importlib.import_module("models.step")``, ``"worker.py"``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def read_names(path: Path) -> frozenset[str]:
    """Return the names by which a file may refer to others: modules and file names. Empty if it cannot be read."""
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
        # Longer texts are prose.
        case ast.Constant(value=str(text)) if len(text) < 200:
            yield text


def find_touched(
    saved: Sequence[Path], tests: Sequence[Path], names: Mapping[Path, frozenset[str]]
) -> frozenset[Path] | None:
    """Return the test files that lead to a saved file; None if one leads to no test, so that its effect is unknown.

    Args:
        saved: files that are new, changed or gone.
        tests: files that have tests.
        names: for each Python file, the names by which it may refer to others.
    """
    # Recording imports at run time would credit a module to its first importer only, and knows nothing of a file that
    # could not be collected.
    meant_by = _importers({*names, *saved}, names)
    touched: set[Path] = set()
    for path in saved:
        reached = _closure(path, meant_by)
        found = {test for test in tests if test in reached or _is_conftest_of(reached, test)}
        if not found:
            # A file that no test imports may still matter: a plugin, data, a program that a test starts.
            return None
        touched |= found
    return frozenset(touched)


def _importers(files: set[Path], names: Mapping[Path, frozenset[str]]) -> dict[Path, set[Path]]:
    """Map each file to the files that refer to it."""
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
    """Yield all names by which a file may be referred to: ``c``, ``b.c``, ``a.b.c``, ``c.py``, ``b/c.py``."""
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
