"""Selection of tests for ``disttest run`` by earlier timings, and minimum requirements of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from disttest.errors import UsageError
from disttest.model import Frozen
from disttest.results.floors import Floors, make_floors
from disttest.results.journal import FILE_NAME
from disttest.safe_open import read_input


class RunSelection(Frozen):
    """The checked options."""

    timings: tuple[Path, ...]
    failed_first: bool
    floors: Floors

    def after(self, earlier: Path | None) -> RunSelection:
        """Return this selection with the previous run as timings, if failed tests go first and no timings are given."""
        if earlier is None or not self.failed_first or self.timings:
            return self
        return msgspec.structs.replace(self, timings=(earlier / FILE_NAME,))

    def pytest_arguments(self) -> list[str]:
        """Return the selection as arguments of the plugin."""
        arguments = [f"--disttest-timings={path.absolute()}" for path in self.timings]
        if self.failed_first:
            arguments.append("--disttest-failed-first")
        return arguments


def take_selection(given: dict[str, Any]) -> RunSelection:
    """Take the options out of click's values and check them.

    Raises:
        UsageError: a file cannot be read, or a value is invalid.
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
        floors=floors,
    )


def read_text(path: Path, what: str) -> str:
    """Read a text file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return read_input(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} cannot be read from {path}: {error}") from error
