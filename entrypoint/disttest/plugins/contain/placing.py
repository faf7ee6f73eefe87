"""Placement of tests without a world: isolated processes, processes shared by files, and reasons against isolation."""

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
"""Attributes of pytest's options that need the terminal, mapped to the names of the options."""
_WIDE = ("session", "package")
_NARROW_FOR_US = ("_pytest.", "xdist.", "pytest_asyncio.", "disttest.")
"""Prefixes of modules whose session fixtures share no state between tests."""
_COLLECTING = ("benchmark", "record_testsuite_property", "snapshot")
"""Fixtures that collect data in the pytest process for the end of the run."""
_ASKING = re.compile(r"^(?!\s*#).*\b(?:breakpoint|set_trace)\(", re.MULTILINE)

Pairs = list[tuple[pytest.Item, TestCase]]


# Opt-in: a change that one file makes to a module is not visible in the next file. Files run one after another,
# because ordinary tests use fixed ports and files.
def place_isolated(pairs: Pairs, config: pytest.Config, options: RunOptions) -> list[str]:
    """Place tests without a world into isolated processes.

    Args:
        pairs: all tests of the run; changed in place.
        config: pytest's configuration.
        options: options of the run.

    Returns:
        Messages: the tests that stay in the pytest process, with reasons.
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
            test,
            kind=WorldKind.PROCESS,
            isolation=isolation,
            shares_process=item.path in shared,
            # An ordinary pytest run has nothing running in parallel: tests use fixed ports and files.
            exclusive=True,
        )

    pairs[:] = [(item, placed(item, test)) for item, test in pairs]
    if everywhere:
        return [f"--isolate-files has no effect {everywhere}: ordinary tests run in the pytest process"]
    return [f"{file.name} is not isolated: {why}" for file, why in staying.items()]


def _why_none(config: pytest.Config) -> str:
    """Return why all ordinary tests must run in the pytest process; empty if they need not."""
    asked = [flag for name, flag in _IN_THIS_PROCESS.items() if getattr(config.option, name, False)]
    if config.getoption("capture", "fd") == "no":
        asked.append("-s")
    if asked:
        return f"with {', '.join(asked)}"
    # Isolated processes would not have these children, and could not wait for them.
    if begun := multiprocessing.active_children():
        names = ", ".join(sorted(child.name for child in begun)[:4])
        return f"where a conftest or plugin has started processes for the whole run ({names})"
    return ""


def _why_not(file: Path, items: Iterable[pytest.Item]) -> str:
    """Return why the tests of one file must run in the pytest process; empty if they need not."""
    for item in items:
        for name in _COLLECTING:
            if name in getattr(item, "fixturenames", ()):
                return f"its tests use the fixture {name}, which reports them in the pytest process"
    try:
        asks = bool(_ASKING.search(file.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return ""
    return "it has a breakpoint, which needs the terminal" if asks else ""


def _uses_wide_fixture(item: Any) -> bool:
    """Return whether a test uses a fixture with a scope wider than a file, except pytest's own."""
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
