"""Which ordinary tests are contained, and what hinders that; the rest is done as for worlds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from disttest.model import Kind, TestCase

_IN_THIS_PROCESS = {
    "usepdb": "--pdb",
    "trace": "--trace",
    "setuponly": "--setup-only",
    "setupshow": "--setup-show",
    "setupplan": "--setup-plan",
}
"""Attribute of pytest's options -> the option: what speaks to the terminal."""
_WIDE = ("session", "package")


def is_ordinary(test: TestCase) -> bool:
    """Whether a test runs in the pytest process."""
    return test.world is None and test.kind is not Kind.PROCESS


def why_not_contained(config: pytest.Config) -> str:
    """Why ordinary tests have to run in the pytest process, in words; empty if they need not."""
    asked = [flag for name, flag in _IN_THIS_PROCESS.items() if getattr(config.option, name, False)]
    if config.getoption("capture") == "no":
        asked.append("-s")
    if not asked:
        return ""
    return f"--contain has no effect with {', '.join(asked)}: ordinary tests run in the pytest process, without a time limit"


def limits_not_kept(pairs: Iterable[tuple[pytest.Item, TestCase]], *, asked: bool) -> str:
    """Say which tests have a time limit that nobody keeps: in the pytest process none can be ended without the run.

    Args:
        pairs: all tests of the run.
        asked: a limit was given for the whole run.
    """
    mine = [item for item, test in pairs if is_ordinary(test)]
    limited = [item for item in mine if asked or item.get_closest_marker("timeout") is not None]
    if not limited or limited[0].config.pluginmanager.hasplugin("timeout"):  # pytest-timeout's
        return ""
    return (
        f"{len(limited)} tests without a world have a time limit that is not kept ({limited[0].nodeid} …): they run in the "
        "pytest process. --contain runs them in processes of their own, under their limits"
    )


def fixtures_set_up_again(items: Iterable[pytest.Item]) -> Iterator[str]:
    """Say which fixtures of a session or package are set up once for each file, as each runs in a process of its own."""
    users: dict[tuple[str, str], set[str]] = {}
    for item in items:
        for name, definition in _wide_fixtures(item):
            users.setdefault((name, definition), set()).add(item.nodeid.partition("::")[0])
    for (name, definition), files in sorted(users.items()):
        if len(files) > 1:
            yield (
                f"the fixture {name} of {definition} is set up {len(files)} times, once for each file that uses it: contained "
                "files share no process (--contain=false runs them in one)"
            )


def _wide_fixtures(item: Any) -> Iterator[tuple[str, str]]:
    """Name and place of the user's fixtures of a scope wider than a file."""
    definitions: dict[str, Sequence[Any]] = getattr(
        getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}
    )
    for name, (*_, last) in definitions.items():
        # Fixtures of plugins have no place in the tree of tests.
        if last.scope in _WIDE and (last.baseid or _is_of_conftest(last)):
            yield name, f"{last.baseid or 'the root'} ({last.scope})"


def _is_of_conftest(definition: Any) -> bool:
    return getattr(definition.func, "__module__", "").rpartition(".")[2] == "conftest"
