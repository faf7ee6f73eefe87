"""Reads suites and tests without importing them: functions, docstrings and marks, from the source alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ID = re.compile(r"(?:HN|RU|CD|AG|DY)-[A-Z]?\d+[a-z]?")
_COMMENT = re.compile(r"#\s*covers:\s*(.+)")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A mark as it is written: ``pytest.mark.NAME(*arguments, **options)``."""

    name: str
    arguments: tuple[object, ...]
    options: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class TestFunction:
    """One test function of a file, with the marks of its class and module."""

    file: Path
    name: str
    line: int
    doc: str
    marks: tuple[Mark, ...]

    @property
    def nodeid(self) -> str:
        """Path from the repository's root, and the name."""
        return f"{self.file.relative_to(ROOT)}::{self.name}"

    def arguments(self, mark: str) -> tuple[object, ...]:
        """Arguments of all marks of that name."""
        return tuple(value for each in self.marks if each.name == mark for value in each.arguments)

    def closest(self, mark: str) -> Mark | None:
        """The mark of that name nearest to the function."""
        return next((each for each in self.marks if each.name == mark), None)


def test_files(*folders: str) -> list[Path]:
    """All Python files below the folders of the repository, in order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def functions_of(path: Path) -> list[TestFunction]:
    """The test functions of a file; methods are named ``Class::method``."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return list(_functions(path, tree.body, prefix="", outer=tuple(_module_marks(tree))))


def _functions(
    path: Path, body: Iterable[ast.stmt], *, prefix: str, outer: tuple[Mark, ...]
) -> Iterator[TestFunction]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            marks = tuple(_marks(node.decorator_list))
            yield from _functions(path, node.body, prefix=f"{prefix}{node.name}::", outer=marks + outer)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield TestFunction(
                file=path,
                name=prefix + node.name,
                line=node.lineno,
                doc=ast.get_docstring(node) or "",
                marks=tuple(_marks(node.decorator_list)) + outer,
            )


def _module_marks(tree: ast.Module) -> Iterator[Mark]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "pytestmark" for t in node.targets):
            yield from _marks([node.value])


def _marks(nodes: Iterable[ast.AST]) -> Iterator[Mark]:
    """Every ``pytest.mark.x`` below the nodes, also inside ``pytest.param(..., marks=...)``."""
    for root in nodes:
        called = {id(node.func): node for node in ast.walk(root) if isinstance(node, ast.Call)}
        for node in ast.walk(root):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "mark"
            ):
                call = called.get(id(node))
                arguments = [_constant(a) for a in call.args] if call else []
                options = {k.arg: _constant(k.value) for k in call.keywords if k.arg} if call else {}
                yield Mark(name=node.attr, arguments=tuple(arguments), options=options)


def _constant(node: ast.AST) -> object:
    try:
        return ast.literal_eval(node)  # type: ignore[arg-type]
    except ValueError:
        return ast.unparse(node)


def covered_ids(path: Path) -> dict[str, list[str]]:
    """Ids of the catalogue that a file's marks and comments name, each with the places that name it."""
    found: dict[str, list[str]] = {}
    for function in functions_of(path):
        for name in function.arguments("covers"):
            found.setdefault(str(name), []).append(function.nodeid)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if match := _COMMENT.search(line):
            for name in ID.findall(match[1]):
                found.setdefault(name, []).append(f"{path.relative_to(ROOT)}:{number}")
    return found
