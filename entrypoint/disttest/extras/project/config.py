"""``disttest config``: the settings that a run would have here, and where each comes from."""

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
    """An option of a run, as it stands here."""

    name: str
    value: str
    source: str
    """The variable or the file that says so; empty for a default."""


@serves(Purpose.SETUP)
@click.command(cls=ShowingCommand)
@click.argument("targets", nargs=-1, metavar="[SUITE|PATH…]")
def config(targets: tuple[str, ...]) -> None:
    """Show the settings of a run of these paths, and where each comes from: a flag wins over a variable, and that over a file."""
    project = read_project_settings(targets)
    settings = [*read_settings(project)]
    width, room = (max(map(len, column)) for column in list(zip(*settings, strict=True))[:2])
    for name, value, source in settings:
        click.echo(f"{name:<{width}}  {value:<{room}}  {source or 'default'}".rstrip())
    click.echo(f"\nproject file: {project.path or 'none with [tool.disttest] at or above these paths'}")


def read_settings(project: ProjectSettings) -> Iterator[EffectiveOption]:
    """Every option of a run, in order.

    Raises:
        UsageError: a variable has a value that makes no sense.
    """
    found = [*find_given(project.fill({}), rows=PROJECT_OPTIONS)]
    for each in found:
        parse_given(*each)
    given = {option: (text, source) for option, text, source in found}
    for option in PROJECT_OPTIONS:
        text, source = given.get(option, (_unless_given(option), ""))
        if source == option.flag:  # no flag but those that the file stands for
            source = str(project.path)
        yield EffectiveOption(option.name, "(hidden)" if option.secret and source else text, source)


def _unless_given(option: Option) -> str:
    return (
        option.by_command
        or option.otherwise
        or option.shown_default
        or ("false" if option.is_switch else "not set")
    )
