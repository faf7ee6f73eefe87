"""The registry: one row for each option of each command, in the order of help and docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from disttest.errors import PluginError
from disttest.options import run_rows
from disttest.options.option import IN_CONTAINER, PLANS, Option
from disttest.options.run_rows import (
    KEEP_RESULTS,
    OTHER_OPTIONS,
    SELECTION_OPTIONS,
)
from disttest.options.values import Type
from disttest.plugin_manager import plugin_manager

__all__ = [
    "COMMAND_SETTINGS",
    "IN_CONTAINER",
    "KEEP_RESULTS",
    "OPTIONS",
    "PLUGIN_OPTIONS",
    "PLUGIN_SWITCHES",
    "PROJECT_OPTIONS",
    "RUN_OPTIONS",
    "SELECTION_OPTIONS",
    "default_of",
    "groups_of",
    "options_of",
]


def _of_plugins() -> Iterator[Option]:
    """Yield the options that plugins add.

    Raises:
        PluginError: one has the name of another option of the same command, or takes many values in each run.
    """
    known = {(name, option.name): "disttest" for option in run_rows.RUN_OPTIONS for name in option.commands}
    for plugin, option in plugin_manager().items("disttest_addoptions", Option):
        if not isinstance(option.type, Type):
            raise PluginError(
                f"plugin {plugin}: the type of {option.flag} is {option.type!r}; take one of disttest.options.values, "
                'such as WHOLE or path("FILE")'
            )
        # The values of a secret option are the lines of one text.
        if option.many and not option.secret and "run" in option.commands and not option.for_command:
            raise PluginError(
                f"plugin {plugin}: {option.flag} of run has many=True; let its type split one text instead"
            )
        for command in option.commands:
            other = known.setdefault((command, option.name), plugin)
            if other != plugin:
                raise PluginError(
                    f"plugin {plugin} and {other} both have an option {option.flag} of {command}"
                )
        yield option


# This import loads all plugins. A plugin that imports this module at its top is refused (`plugin_manager`).
PLUGIN_OPTIONS: tuple[Option, ...] = tuple(_of_plugins())
"""Options of plugins for all commands."""

RUN_OPTIONS = (
    *run_rows.RUN_OPTIONS,
    *(option for option in PLUGIN_OPTIONS if "run" in option.commands and not option.for_command),
)
"""Options of every run, for this process and the pytest processes that it starts."""

SECRET_VARIABLES = tuple(option.variable for option in RUN_OPTIONS if option.secret)
"""Variables whose values no output may show."""

COMMAND_SETTINGS = (
    *(option for option in PLUGIN_OPTIONS if option.for_command and "run" in option.commands),
    KEEP_RESULTS,
)
"""Options of a run that only the command reads."""

PROJECT_OPTIONS = (*RUN_OPTIONS, *(option for option in COMMAND_SETTINGS if option.in_file))
"""Options of a run that a project's file may set."""

OPTIONS = (
    *OTHER_OPTIONS,
    *(option for option in PLUGIN_OPTIONS if option.title == PLANS),
    *SELECTION_OPTIONS,
    *(option for option in PLUGIN_OPTIONS if option not in RUN_OPTIONS and not option.title),
    *RUN_OPTIONS,
    *(option for option in PLUGIN_OPTIONS if option.title not in ("", PLANS)),
)

_OF_ANY_RUN = ("deadline", "results", "seed", "progress", "mask")
"""Further options that other commands that run tests show, besides those that determine the tests."""
_RUNNING = frozenset(name for _, name in plugin_manager().items("disttest_commands_that_run", str))


PLUGIN_SWITCHES = {f"--disttest-{option.name}": option.type for option in RUN_OPTIONS if option.type.bare}
"""Options of the plugin that need no value, with their types."""


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Return the values of secret variables, of which each line is one."""
    return [line for name in SECRET_VARIABLES for line in environ.get(name, "").splitlines()]


def options_of(command: str) -> tuple[Option, ...]:
    """Return the options of a command, in order."""
    runs = command in _RUNNING
    return tuple(option for option in OPTIONS if command in option.commands or (runs and option.of_every_run))


_COMMON = (
    *("world-sizes", "backend", "device", "gpus", "timeout", "deadline", "results", "last-failed"),
    *("failed-first", "repeat", "retries", "isolation", "progress"),
)
"""Options of ``disttest run`` that its help lists first, before the common ones of plugins."""
WITHOUT_FLAG = "Settings without a flag"
"""Title of the options that only the project's file and variables set."""


def groups_of(command: str) -> tuple[tuple[str, tuple[Option, ...]], ...]:
    """Return the options of a command by the titles in its help. Except ``run``, commands have one group."""
    options = options_of(command)
    if command != "run":
        return (("Options", tuple(row for row in options if is_shown(row, command))),)
    titles = dict.fromkeys(filter(None, map(_title_of, options)))
    common = (
        *(option for name in _COMMON for option in options if option.name == name),
        *(option for option in options if option.common),
    )
    left = tuple(row for row in options if row not in common)
    return (
        ("Common options", common),
        ("Further options of a run", tuple(row for row in left if not _title_of(row))),
        *((title, tuple(row for row in left if _title_of(row) == title)) for title in titles),
    )


def is_shown(option: Option, command: str) -> bool:
    """Return whether a command's help shows an option. Options of a run without effect are accepted but not shown."""
    matters = command == "run" or not option.of_every_run or option.shapes_tests
    matters = matters or (command in _RUNNING and option.name in _OF_ANY_RUN)
    return matters and not (option.hidden or option.no_flag)


def _title_of(option: Option) -> str:
    if option.no_flag:
        return WITHOUT_FLAG
    return PLANS if option in SELECTION_OPTIONS and option.name not in _COMMON else option.title


def replacement_of(word: str) -> str:
    """Return the advice for a flag or setting that this release moved or removed; empty for all others."""
    name = word.removeprefix("--")
    for option in OPTIONS:
        if now := dict(option.formerly).get(name):
            return f"{word} is {now} now"
        if option.no_flag and word == option.flag:
            variable = f", or set {option.variable}" if option.has_variable else ""
            return (
                f"{word} is a setting now: write {name} = … below [tool.disttest] in pyproject.toml{variable}"
            )
    return ""


def default_of(name: str) -> Any:
    """Return the default of an option of a run."""
    return next(option.default for option in RUN_OPTIONS if option.name == name)
