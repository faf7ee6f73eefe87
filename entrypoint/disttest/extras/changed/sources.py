"""Digests of the parts of the project that tests use: functions, module-level code, files, folders."""

from __future__ import annotations

import ast
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from disttest.model import Frozen

Unit = tuple[str, str]
"""File, relative to the root of the repository, and the part of it."""

MODULE = "<module>"
"""Part: the code of a module that runs when it is imported, with the signatures of its functions."""
WHOLE = ""
"""Part: all bytes of a file."""
FOLDER = "/"
"""Part: the names in a folder."""
LINK = "<link>"
"""Part: the target of a symbolic link."""
OF_PATHS = (WHOLE, FOLDER, LINK)
"""Parts that are no code."""
ALL_PYTHON: Unit = ("", "python")
"""All Python files: used by a test that starts another program, whose functions are not recorded."""
LOST: Unit = ("", "lost")
"""Used by a test that cannot be recorded completely. It never equals the recorded one."""
UNKNOWN = ""
"""Digest of a part that counts as changed whenever it is compared."""
_MISSING = "missing"
_TEXT = "="
"""In front of a text that may be the whole name of a module."""


class Parsed(Frozen):
    """The parts of a Python file."""

    units: dict[str, str]
    """Part -> digest."""
    imports: tuple[str, ...] = ()
    """Names of modules that the file may import, wherever it does."""


def digest_of(data: bytes) -> str:
    """Return the digest of bytes."""
    # 80 bits keep the record small. A million parts collide with a probability of 4e-13.
    return hashlib.sha256(data).hexdigest()[:20]


def parse(source: bytes) -> Parsed:
    """Divide a Python file; a file that is not valid Python has only one part."""
    try:
        tree = ast.parse(source)
    # ValueError is for NUL bytes (Python 3.11). RecursionError is for expressions that nest thousands of
    # levels deep.
    except (SyntaxError, ValueError, RecursionError):
        return Parsed(units={MODULE: digest_of(source)})
    # Before the bodies of functions are taken out of the tree: functions import modules, too.
    imports = tuple(sorted(set(_imports(tree))))
    # Most files have no such statement, which spares them a walk over each function.
    functions = _Functions(may_set_globals=b"global" in source)
    # The rest of the tree is the code that an import runs.
    functions.visit(tree)
    units = {name: digest_of("".join(bodies).encode()) for name, bodies in functions.bodies.items()}
    return Parsed(units={**units, MODULE: digest_of(_dump(tree).encode())}, imports=imports)


def _dump(node: object) -> str:
    """Return a text of code without its places and comments; ``ast.dump`` takes twice as long."""
    if isinstance(node, ast.AST):
        fields = [_dump(getattr(node, name, None)) for name in node._fields]
        return f"{type(node).__name__}({','.join(fields)})"
    return f"[{','.join(map(_dump, node))}]" if isinstance(node, list) else repr(node)


class _Functions(ast.NodeTransformer):
    """Takes the bodies of functions out of a module."""

    def __init__(self, *, may_set_globals: bool) -> None:
        self.bodies: dict[str, list[str]] = defaultdict(list)
        self._classes: list[str] = []
        self._may_set_globals = may_set_globals

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._take(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._take(node)

    def _take(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        sets_globals = self._may_set_globals and any(isinstance(each, ast.Global) for each in ast.walk(node))
        if not sets_globals and not _outlives_a_test(node):
            # Several functions may have one name: the setter of a property, the branches of an `if`.
            self.bodies[".".join([*self._classes, node.name])] += map(_dump, node.body)
            node.body = [ast.Pass()]
        return node


def _outlives_a_test(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether tests use a function that they do not call: they count it as code of its module."""
    # Only the first test of a process calls a function whose result is cached (or that sets a global variable). pytest calls
    # the hooks of a conftest.
    return node.name.startswith("pytest_") or any(
        "cache" in ast.unparse(each) for each in node.decorator_list
    )


def _imports(tree: ast.AST) -> Iterator[str]:
    # Not ast.walk, which cannot leave out the branch under TYPE_CHECKING. No test runs that branch.
    waiting: list[object] = [tree]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                waiting += node.orelse
                continue
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                # `from ..a import b` is `..a` and `..a.b`, since b may be a module or a name in one.
                module = "." * node.level + (node.module or "")
                yield module
                yield from (
                    f"{module.removesuffix('.')}.{alias.name}" if node.module else f"{module}{alias.name}"
                    for alias in node.names
                )
            case ast.Constant(value=str() as text) if text.replace(".", "").isidentifier():
                # `importlib.import_module("a.b")`, `pytest_plugins = ["a.b"]`, `mock.patch("a.b")`.
                yield f"{_TEXT}{text}"
        if isinstance(node, ast.AST):
            for value in vars(node).values():
                if isinstance(value, list):
                    waiting += value
                elif isinstance(value, ast.AST):
                    waiting.append(value)


class Sources:
    """The files of a project as they are now.

    Args:
        root: root of the repository.
        files: its files, as git lists them.
    """

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self.root = root
        self.files = frozenset(files)
        self._parsed: dict[str, Parsed] = {}
        self._neighbours: dict[str, frozenset[str]] = {}
        self._read = {file: self._content(file) for file in self.files if file.endswith(".py")}

    def _content(self, file: str) -> bytes:
        try:
            return (self.root / file).read_bytes()
        # git lists a file that was deleted but not staged. It counts as an empty one.
        except OSError:
            return b""

    def conftests_of(self, file: str) -> Iterator[str]:
        """Yield the conftests that apply to a file."""
        names = ((folder / "conftest.py").as_posix() for folder in PurePosixPath(file).parents)
        return (name for name in names if name in self.files)

    def parsed(self, file: str) -> Parsed:
        """Return the parts of a Python file, as it was when this object was made."""
        if file not in self._parsed:
            self._parsed[file] = parse(self._read.setdefault(file, self._content(file)))
        return self._parsed[file]

    def digest(self, unit: Unit) -> str:
        """Return the digest of a part."""
        file, part = unit
        if unit == ALL_PYTHON:
            return self._all_python
        if unit == LOST:
            return UNKNOWN
        if part in OF_PATHS:
            return _digest_of_link(self.root / file) if part == LINK else digest_of_path(self.root / file)
        own = self.parsed(file).units.get(part, _MISSING)
        # A module that is added later may be one that an optional import looks for, or hide the one that was imported.
        return (
            digest_of("\n".join([own, *sorted(self._neighbours_of(file))]).encode())
            if part == MODULE
            else own
        )

    def was_edited(self, file: str) -> bool:
        """Return whether a Python file differs from what this object has read."""
        return self._content(file) != self._read.setdefault(file, self._content(file))

    @cached_property
    def _all_python(self) -> str:
        listed = (
            f"{file} {digest_of(data)}" for file, data in sorted(self._read.items()) if file in self.files
        )
        return digest_of("\n".join(listed).encode())

    def resolve(self, unit: Unit) -> Unit:
        """Return the part that contains a function of a Python file, given the qualified name of its code."""
        file, name = unit
        if name in OF_PATHS or not file:
            return unit
        # `Class.method.<locals>.inner` is code of `Class.method`, whose digest includes it.
        outermost = name.partition(".<locals>")[0]
        return (file, outermost if outermost in self.parsed(file).units else MODULE)

    @cached_property
    def _by_suffix(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = defaultdict(list)
        for file in self._read:
            parts = PurePosixPath(file).with_suffix("").parts
            # sys.path is unknown, so `src/pkg/core.py` is found as src/pkg/core, pkg/core and core.
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            for first in range(len(parts)):
                found["/".join(parts[first:])].append(file)
        return {name: tuple(files) for name, files in found.items()}

    def closure(self, roots: Iterable[str], more: Mapping[str, Iterable[Unit]]) -> set[str]:
        """Return the Python files that files may import, directly or through others; ``more`` maps files to what their
        import was seen to use."""
        found = {file for file in roots if file.endswith(".py")}
        waiting = list(found)
        while waiting:
            file = waiting.pop()
            seen = (unit[0] for unit in more.get(file, ()) if unit[0].endswith(".py"))
            new = self._neighbours_of(file).union(seen) - found
            found |= new
            waiting += new
        return found

    def _neighbours_of(self, file: str) -> frozenset[str]:
        if file not in self._neighbours:
            self._neighbours[file] = frozenset(self.imported(file))
        return self._neighbours[file]

    def imported(self, file: str) -> Iterator[str]:
        """Yield the files that a file may import; by their names, whatever ``sys.path`` is."""
        for name in self.parsed(file).imports:
            bare = name.removeprefix(_TEXT).lstrip(".")
            dots = len(name) - len(bare) if not name.startswith(_TEXT) else 0
            above = PurePosixPath(file).parents
            base = above[min(dots, len(above)) - 1] if dots else PurePosixPath()
            parts = (base / bare.replace(".", "/")).parts
            # `import a.b` also runs a/__init__.py. A text counts only as a whole, since "data" or "a" is
            # often just a word.
            first = len(parts) if name.startswith(_TEXT) else 1
            for last in range(first, len(parts) + 1):
                yield from self._by_suffix.get("/".join(parts[:last]), ())


def digest_of_path(path: Path) -> str:
    """Return the digest of a file's bytes, or of the names in a folder."""
    try:
        if path.is_dir():
            # Without hidden entries: .coverage and .pytest_cache appear while tests run.
            names = sorted(
                each.name for each in path.iterdir() if not each.name.startswith((".", "__pycache__"))
            )
            return digest_of("\n".join(names).encode())
        return digest_of(path.read_bytes())
    except OSError:
        return _MISSING


def _digest_of_link(path: Path) -> str:
    try:
        return digest_of(os.fsencode(path.readlink()))
    except OSError:
        return _MISSING
