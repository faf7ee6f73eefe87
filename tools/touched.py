"""Which tests a change touches beside the unit tests: prints their files, the surest first.

    python tools/touched.py [BASE]        (default: origin/main, else main)

A change is what differs from the common ancestor with BASE, and what git does not know yet. A test file is touched by

1. a change of its own;
2. one of a module that it is named after: test_replay.py by replay/player.py;
3. one of a module that it imports, by way of its helpers, too;
4. one of a file that it names: adopt.md, action.yml, a faulty suite.

Only the kinds that ask nothing of the machine are looked at. The first files are printed, the others are named: this is a
guess for the minutes while one works, and what decides is ``make test``.

``disttest run --changed`` cannot choose here. Our tests start disttest as a program, so its record selects them after a change
of any Python file: 111 of the 112 tests in tests/core/test_states.py. The import of each of these tests may load all 674 modules.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "entrypoint" / "disttest"
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
KINDS = ("contract", "core", "integration", "plugins")
MOST = 3
"""Files that are printed: a minute or so."""
_NO_SUBJECT = {"and", "of", "rank", "test", "world"}
"""Words in the names of half of all modules."""


def git(*arguments: str) -> list[str]:
    """The lines that git answers; none if it refuses."""
    said = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return said.stdout.splitlines() if said.returncode == 0 else []


def changed_files(base: str) -> list[Path]:
    """What differs from the common ancestor with ``base``, or is new."""
    bases = [base] if base else ["origin/main", "main"]
    ancestor = next((found[0] for each in bases if (found := git("merge-base", "HEAD", each))), "HEAD")
    return [
        ROOT / name
        for name in (*git("diff", "--name-only", ancestor), *git("ls-files", "-o", "--exclude-standard"))
    ]


def words_of(path: Path) -> set[str]:
    """The words of a path in the singular: ``extras/replay/call_recorder.py`` has replay, call and recorder."""
    return {word.rstrip("s") for word in re.split(r"[/_.]", str(path.with_suffix("")))} - _NO_SUBJECT


def module_file(name: str) -> Path | None:
    """The file of a module of the product or of the tests' helpers; None for all others."""
    base = PACKAGE.parent if name.partition(".")[0] == "disttest" else SUPPORT
    stem = base.joinpath(*name.split("."))
    return next((each for each in (stem.with_suffix(".py"), stem / "__init__.py") if each.is_file()), None)


@cache
def imported_files(path: Path) -> frozenset[Path]:
    """The files that a test imports, and those that its helpers import."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {alias.name: module_file(f"{node.module}.{alias.name}") for alias in node.names}
            found.update(file for file in inner.values() if file)
            names = [node.module] if None in inner.values() else []
        found.update(file for name in names if (file := module_file(name)))
    helpers = [file for file in found if file.is_relative_to(SUPPORT) and file != path]
    return frozenset(found).union(*map(imported_files, helpers))


def imports(test: Path, changed: Path) -> bool:
    """Whether a test imports a file; a package stands for the modules that lie in it."""
    files = imported_files(test)
    return changed in files or changed.parent / "__init__.py" in files


def names_file(test: Path, changed: Path) -> bool:
    """Whether a test names a file that is no module: ``docs/adopt.md``, ``"adopt"``, ``tools/setup``."""
    named = [changed.name, f'"{changed.stem}"'] if changed.suffix else [str(changed.relative_to(ROOT))]
    return any(name in test.read_text() for name in named)


def rule_for(test: Path, changed: Path) -> int | None:
    """The number of the rule above by which a change touches a test; None if none does."""
    if changed == test:
        return 1
    for modules in (PACKAGE, SUPPORT):
        if changed.is_relative_to(modules):
            subject = words_of(changed.relative_to(modules))
            return 2 if words_of(Path(test.stem)) & subject else 3 if imports(test, changed) else None
    if changed.is_relative_to(TESTS) and not changed.is_relative_to(TESTS / "fixtures"):
        return 3 if changed == test.with_name("conftest.py") else None
    return 4 if names_file(test, changed) else None


def touched(changed: Collection[Path]) -> list[Path]:
    """The test files, the surest first: by their rule, then by how many changes it finds."""
    tests = [file for kind in KINDS for file in sorted((TESTS / kind).glob("test_*.py"))]
    found = {test: [rule for each in changed if (rule := rule_for(test, each))] for test in tests}
    near = [test for test in tests if found[test]]
    return sorted(near, key=lambda test: (min(found[test]), -found[test].count(min(found[test]))))


def main() -> None:
    """Print the first ones; name the others."""
    found = [str(test.relative_to(ROOT)) for test in touched(changed_files("".join(sys.argv[1:2])))]
    print(*found[:MOST])
    if found[MOST:]:
        print(f"touched too, and not run: {' '.join(found[MOST:])}", file=sys.stderr)


if __name__ == "__main__":
    main()
