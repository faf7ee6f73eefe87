"""Targets of the command line: bundled suites, paths, node ids."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import disttest
from disttest.errors import UsageError
from disttest.model import Frozen


class Targets(Frozen):
    """Arguments of pytest that select the tests."""

    arguments: tuple[str, ...]
    bundled: bool
    """Whether only bundled suites were named, which have their own pytest configuration."""


def suites_dir() -> Path:
    """Return the folder of the bundled suites, inside the installed package or in the checkout."""
    package = Path(disttest.__file__).parent
    installed = package / "suites"
    return installed if installed.is_dir() else package.parents[1] / "suites"


def suite_names() -> tuple[str, ...]:
    """Return the sorted names of the bundled suites."""
    folder = suites_dir()
    if not folder.is_dir():
        return ()
    return tuple(sorted(path.name for path in folder.iterdir() if (path / "__init__.py").is_file()))


def resolve_targets(names: Sequence[str]) -> Targets:
    """Turn names into pytest arguments.

    The name of a suite takes precedence over a folder of the same name (write ``./ddp``). A file or test inside a
    suite (``ddp/test_join.py::test_x``) is resolved in the suite, unless such a path exists here.

    Raises:
        UsageError: a name is neither a suite nor a path; the message suggests the nearest suite.
    """
    suites = suite_names()
    bundled = [name in suites or _is_in_suite(name, suites) for name in names]
    arguments = tuple(
        str(suites_dir() / name) if ours else _path(name, suites)
        for name, ours in zip(names, bundled, strict=True)
    )
    return Targets(arguments=arguments, bundled=bool(names) and all(bundled))


def _is_in_suite(name: str, suites: Sequence[str]) -> bool:
    file = name.partition("::")[0]
    return (
        file.partition("/")[0] in suites
        # `ddp/../../x` must not lead out of the suites.
        and ".." not in Path(file).parts
        and not Path(file).exists()
        and (suites_dir() / file).exists()
    )


def _path(name: str, suites: Sequence[str]) -> str:
    if Path(name.partition("::")[0]).exists():
        return name
    # Such a word is a path with a mistake, so no suite is suggested for it.
    if "/" in name or "." in name:
        raise UsageError(f"no such file or directory: {name}")
    near = difflib.get_close_matches(name, suites, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(f"no suite or path is called {name!r}. {hint}Suites: {', '.join(suites)}")
