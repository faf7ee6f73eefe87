"""The request of ``disttest run``: its options, its selection of tests, and the place that runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from disttest.host.event_loop import NotedSignals
from disttest.model import Frozen, Invocation, RunPart
from disttest.options.environment import environment
from disttest.options.flags import was_given
from disttest.options.option import Option
from disttest.options.project_file import ProjectSettings, read_project_settings
from disttest.options.registry import COMMAND_SETTINGS
from disttest.options.run import RunOptions, by_command, given_options, parse_given, resolve_options
from disttest.options.values import check_provided
from disttest.plugin_manager import plugin_manager
from disttest.results.directory import ResultsDirectory
from disttest.results.fold import RunResult
from disttest.results.journal import FILE_NAME

Flags = Mapping[str, str | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request from flags, variables and the project's file."""

    targets: tuple[str, ...]
    pytest_args: Sequence[str]
    progress: str
    flags: Flags
    """Flags by field name, as text."""
    options: RunOptions
    asked: dict[str, str]
    """Options that were given, by name."""
    selection: RunSelection
    setup: Path | None
    settings: Mapping[str, Any]
    """Options that only the command reads, by field."""
    given_settings: tuple[Option, ...]
    """Those of them that a flag or a variable has set."""
    place: RunPlace | None = None
    """Place of the run; None for this machine."""
    part: RunPart = dataclasses.field(default_factory=RunPart)
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Plugin name -> data for the plugin in the pytest process. Files in them are files of this machine."""
    attachments: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    """Files to copy into the results directory, masked, by their names there."""

    def with_option(self, option: Option, text: str) -> RunRequest:
        """Return this request with another value of a plugin's option, as if the user had not given it."""
        settings = self.options
        return dataclasses.replace(
            self,
            flags={**self.flags, option.field: text},
            options=msgspec.structs.replace(
                settings, plugin_options={**settings.plugin_options, option.field: text}
            ),
            asked={name: value for name, value in self.asked.items() if name != option.name},
        )

    @property
    def needs_new_processes(self) -> tuple[str, ...]:
        """Options of the run that only new processes can serve."""
        device = self.options.device
        asked: dict[str, Any] = {
            "--setup": self.setup,
            self.place.option if self.place else "": self.place,
            f"--device {device}": check_provided(device),
        }
        return tuple(name for name, value in asked.items() if value)


def read_request(
    targets: tuple[str, ...], pytest_args: Sequence[str], progress: str, given: Mapping[str, Any]
) -> RunRequest:
    """Read the whole request; arguments as for :func:`disttest.cli.run_tests.run_tests`.

    Raises:
        UsageError: it is invalid.
    """
    rest = dict(given)
    setup = rest.pop("setup")
    project = read_project_settings(targets)
    settings = {row.field: _setting(row, rest, project) for row in COMMAND_SETTINGS}
    # All that is left in `rest` after this line are options of every run, as text.
    selection = RunSelection(timings=rest.pop("timings"), failed_first=rest.pop("failed_first"))
    flags = project.fill(rest)
    request = RunRequest(
        targets=targets,
        pytest_args=pytest_args,
        progress=progress,
        flags=by_command(flags),
        options=resolve_options(flags),
        asked=given_options(flags),
        selection=selection,
        setup=setup,
        settings=settings,
        given_settings=tuple(row for row in COMMAND_SETTINGS if was_given(row)),
    )
    return plugin_manager().chain("disttest_prepare_run", "request", request)


def _setting(option: Option, given: dict[str, Any], project: ProjectSettings) -> Any:
    """Take the value of a setting from flag or variable, else from the project's file, else the default."""
    asked = given.pop(option.field, option.default)
    if was_given(option):
        return asked
    variable = environment().get(option.variable, "") if option.no_flag and option.has_variable else ""
    if variable:
        return parse_given(option, variable, option.variable)
    text = project.texts.get(option.name, "")
    return option.type.parse(text) if text else asked


class RunSelection(Frozen):
    """The options that refer to earlier runs."""

    timings: tuple[Path, ...]
    failed_first: bool

    def after(self, earlier: Path | None) -> RunSelection:
        """Return this selection with the previous run as timings, if failed tests go first and no timings are given."""
        if earlier is None or not self.failed_first or self.timings:
            return self
        return msgspec.structs.replace(self, timings=(earlier / FILE_NAME,))


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A checked run with its results directory."""

    targets: tuple[str, ...]
    flags: dict[str, str]
    """Options of the run by field as text, for the pytest processes."""
    options: RunOptions
    pytest_args: Sequence[str]
    directory: ResultsDirectory
    data: Mapping[str, Any]
    """Plugin name -> data for the plugin in pytest processes of this machine, whose files they may name."""
    timings: tuple[Path, ...]
    """Files with the durations of earlier runs."""
    failed_first: bool
    part: RunPart
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
