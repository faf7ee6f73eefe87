"""Command ``disttest config``: the effective settings of a run, and the source of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import ShowingCommand
from disttest.options.option import Option
from disttest.options.project_file import ProjectSettings, read_project_settings
from disttest.options.registry import PROJECT_OPTIONS
from disttest.options.run import find_given, parse_given


class EffectiveOption(NamedTuple):
    """Effective value of an option."""

    name: str
    value: str
    source: str
    """Variable or file that sets it; empty for a default."""


@serves(Purpose.SETUP)
@click.command(cls=ShowingCommand)
@click.argument("targets", nargs=-1, metavar="[SUITE|PATH…]")
def config(targets: tuple[str, ...]) -> None:
    """Show the settings of a run of these paths with their sources. Flags override variables, and those the file."""
    project = read_project_settings(targets)
    settings = [*read_settings(project)]
    width, room = (max(map(len, column)) for column in list(zip(*settings, strict=True))[:2])
    for name, value, source in settings:
        click.echo(f"{name:<{width}}  {value:<{room}}  {source or 'default'}".rstrip())
    click.echo(f"\nproject file: {project.path or 'none with [tool.disttest] at or above these paths'}")


def read_settings(project: ProjectSettings) -> Iterator[EffectiveOption]:
    """Yield all options of a run, in order.

    Raises:
        UsageError: a variable has an invalid value.
    """
    found = [*find_given(project.fill({}), rows=PROJECT_OPTIONS)]
    # Parsed for their errors: a wrong value must not be shown as if a run would accept it.
    for each in found:
        parse_given(*each)
    given = {option: (text, source) for option, text, source in found}
    for option in PROJECT_OPTIONS:
        text, source = given.get(option, (_unless_given(option), ""))
        if source == option.flag:  # a flag made from the project's file
            source = str(project.path)
        yield EffectiveOption(option.name, "(hidden)" if option.secret and source else text, source)


def _unless_given(option: Option) -> str:
    return (
        option.by_command
        or option.otherwise
        or option.shown_default
        or ("false" if option.is_switch else "not set")
    )
