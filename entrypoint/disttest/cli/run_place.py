"""The place of a run that a plugin sends to other machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from disttest.host.event_loop import NotedSignals
from disttest.model import Invocation, RunPart
from disttest.options.run import RunOptions
from disttest.results.directory import ResultsDirectory
from disttest.results.fold import RunResult


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A checked run with its results directory."""

    targets: tuple[str, ...]
    flags: dict[str, str]
    """Options of the run by field as text, for the pytest processes."""
    options: RunOptions
    pytest_args: Sequence[str]
    directory: ResultsDirectory
    selecting: tuple[str, ...]
    """Arguments for pytest that select tests. They name files of this machine."""
    timings: tuple[Path, ...]
    """Files with the durations of earlier runs."""
    failed_first: bool
    part: RunPart | None
    """Part of a divided run; None for a whole run."""
    invocation: Invocation
    signals: NotedSignals
    """The signals that cancel the run."""


class RunPlace(Protocol):
    """Other machines, which run the tests and send their results."""

    @property
    def option(self) -> str:
        """The option of the command that chose this place."""

    def record(self) -> Mapping[str, str]:
        """Return names of options with their values as text, for the record of the run and for repeat commands."""

    def run(self, prepared: PreparedRun) -> RunResult:
        """Run all tests until they end or a signal arrives.

        Raises:
            DisttestError: the run cannot be carried out as requested.
        """
