"""Decides which tests without a world run in processes of their own, which share one, and what hinders that."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from disttest.model import Isolation, TestCase, WorldKind
from disttest.options.run import RunOptions
from disttest.runtime.controller.collect import is_ordinary
from disttest.runtime.controller.expand import closest_mark

_IN_THIS_PROCESS = {
    "usepdb": "--pdb",
    "trace": "--trace",
    "setuponly": "--setup-only",
    "setupshow": "--setup-show",
    "setupplan": "--setup-plan",
}
"""Attribute of pytest's options -> the option: what speaks to the terminal."""
_WIDE = ("session", "package")
_NARROW_FOR_US = ("_pytest.", "xdist.", "pytest_asyncio.", "disttest.")
"""Whose fixtures of a session hold nothing that tests share."""
_COLLECTING = ("benchmark", "record_testsuite_property", "snapshot")
"""Fixtures that put into the pytest process what is told at the end of the run."""
_ASKING = re.compile(r"^(?!\s*#).*\b(?:breakpoint|set_trace)\(", re.MULTILINE)

Pairs = list[tuple[pytest.Item, TestCase]]


def place_contained(pairs: Pairs, config: pytest.Config, options: RunOptions) -> list[str]:
    """Have tests without a world run in processes of their own.

    Args:
        pairs: all tests of the run; changed in place.
        config: pytest's.
        options: of the run.

    Returns:
        Messages: which of these tests stay in the pytest process, and why.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item, test in pairs:
        if is_ordinary(test):
            files.setdefault(item.path, []).append(item)
    everywhere = _why_none(config) if files else ""
    staying = {file: why for file, items in files.items() if (why := everywhere or _why_not(file, items))}
    shared = {file for file, items in files.items() if any(map(_uses_wide_fixture, items))}

    def placed(item: pytest.Item, test: TestCase) -> TestCase:
        if not is_ordinary(test) or item.path in staying:
            return test
        is_fresh = closest_mark(item, "fresh_world") is not None
        isolation = Isolation.FRESH if is_fresh else options.isolation or Isolation.WARM
        return msgspec.structs.replace(
            test, kind=WorldKind.PROCESS, isolation=isolation, shares_process=item.path in shared
        )

    pairs[:] = [(item, placed(item, test)) for item, test in pairs]
    if everywhere:
        return [f"--isolate-files has no effect {everywhere}: ordinary tests run in the pytest process"]
    return [f"{file.name} is not isolated: {why}" for file, why in staying.items()]


def _why_none(config: pytest.Config) -> str:
    """Why all ordinary tests have to run in the pytest process; empty if they need not."""
    asked = [flag for name, flag in _IN_THIS_PROCESS.items() if getattr(config.option, name, False)]
    if config.getoption("capture") == "no":
        asked.append("-s")
    if asked:
        return f"with {', '.join(asked)}"
    if begun := multiprocessing.active_children():
        names = ", ".join(sorted(child.name for child in begun)[:4])
        return f"where a conftest or plugin has started processes for the whole run ({names})"
    return ""


def _why_not(file: Path, items: Iterable[pytest.Item]) -> str:
    """The same for the tests of one file."""
    for item in items:
        for name in _COLLECTING:
            if name in getattr(item, "fixturenames", ()):
                return f"its tests use the fixture {name}, which tells of them in the pytest process"
    try:
        asks = bool(_ASKING.search(file.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return ""
    return "it has a breakpoint, which needs the terminal" if asks else ""


def _uses_wide_fixture(item: Any) -> bool:
    """Whether a test uses a fixture of a scope wider than a file, other than pytest's own."""
    definitions: dict[str, Sequence[Any]] = getattr(
        getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}
    )
    return any(
        definition.scope in _WIDE and not _is_narrow(definition)
        for chain in definitions.values()
        for definition in chain
    )


def _is_narrow(definition: Any) -> bool:
    return f"{getattr(definition.func, '__module__', '')}.".startswith(_NARROW_FOR_US)
