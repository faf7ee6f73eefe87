"""Where a run runs, if a plugin has it run on other machines than this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from disttest.host.signals import NotedSignals
from disttest.model import Invocation, RunPart
from disttest.options.run import RunOptions
from disttest.results.directory import ResultsDirectory
from disttest.results.fold import RunResult


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that was checked, and that has its results directory."""

    targets: tuple[str, ...]
    flags: dict[str, str]
    """Options of the run by field, as texts, for the pytest processes."""
    options: RunOptions
    pytest_args: Sequence[str]
    directory: ResultsDirectory
    selecting: tuple[str, ...]
    """Arguments for pytest that select tests; they name files of this machine."""
    timings: tuple[Path, ...]
    """Files with the durations of earlier runs."""
    failed_first: bool
    part: RunPart | None
    """Which part of a divided run it is; None: a whole one."""
    invocation: Invocation
    signals: NotedSignals
    """Those that cancel the run."""


class RunPlace(Protocol):
    """Other machines, which run the tests and send what becomes of them."""

    @property
    def option(self) -> str:
        """The option of the command that chose this place."""

    def record(self) -> Mapping[str, str]:
        """Name of an option -> its value as text, for the record of the run and the commands that repeat its tests."""

    def run(self, prepared: PreparedRun) -> RunResult:
        """Run all tests to their end, or until a signal comes.

        Raises:
            DisttestError: the run cannot be done as it was asked.
        """
