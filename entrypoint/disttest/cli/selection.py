"""Selects tests for ``disttest run`` by earlier timings, and sets the floors under a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disttest.errors import UsageError
from disttest.model import Frozen
from disttest.results.floors import Floors, make_floors
from disttest.safe_open import read_input

UNTIL_FAIL = "100"
"""How often each test is repeated at most with ``--until-fail`` alone."""


class RunSelection(Frozen):
    """The options, checked."""

    timings: tuple[Path, ...]
    failed_first: bool
    last_failed: bool
    until_fail: bool
    floors: Floors

    def with_repeats(self, flags: dict[str, str | None]) -> dict[str, str | None]:
        """The flags of the run, which repeats each test if it is to go on until one fails."""
        return {**flags, "repeat": flags.get("repeat") or UNTIL_FAIL} if self.until_fail else flags

    def pytest_arguments(self) -> list[str]:
        """The same for the plugin."""
        arguments = [f"--disttest-timings={path.absolute()}" for path in self.timings]
        if self.failed_first:
            arguments.append("--disttest-failed-first")
        if self.until_fail:
            arguments.append("-x")
        return arguments


def take_selection(given: dict[str, Any]) -> RunSelection:
    """Take the options out of what click gave, and check them.

    Raises:
        UsageError: a file cannot be read, or a value makes no sense.
    """
    expect = given.pop("expect")
    floors = make_floors(
        min_tests=given.pop("min_tests"),
        min_worlds=given.pop("min_worlds"),
        max_skip_ratio=given.pop("max_skip_ratio"),
        expect=read_text(expect, "--expect") if expect else "",
        expect_file=str(expect or ""),
        strict=given.pop("strict"),
    )
    return RunSelection(
        timings=given.pop("timings"),
        failed_first=given.pop("failed_first"),
        last_failed=given.pop("last_failed"),
        until_fail=given.pop("until_fail"),
        floors=floors,
    )


def read_text(path: Path, what: str) -> str:
    """The text of a file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return read_input(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} cannot be read from {path}: {error}") from error
