"""A row of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from disttest.model import Frozen
from disttest.options.values import SWITCH, Type

PLANS = "Plans, timings and floors"
"""Title of a group of options."""
IN_CONTAINER = ("run", "plan", "doctor")
"""Commands that import tests and so need torch: their actions may start the image. Other commands run on the host."""


class PluginSettings(Protocol):
    """Settings that carry the options of plugins in a run."""

    @property
    def plugin_options(self) -> Mapping[str, str]:
        """Field of an option, mapped to its value as text, for options that were given."""


# One row, so that a flag, its variable, its setting, its input of the action and its line in the docs cannot drift
# apart.
# docs/decisions/0003-options-are-rows.md
class Option(Frozen):
    """An option of one or more commands."""

    name: str
    type: Type
    help: str
    """One sentence without the default, which is appended."""
    commands: tuple[str, ...]
    default: Any = None
    """The value if it is not given."""
    otherwise: str = ""
    """The effect if it is not given, where the default does not express it."""
    by_command: str = ""
    """The default of the command; plain pytest uses ``default``."""
    many: bool = False
    """Whether it is given once for each value, or as an input of the action one per line."""
    secret: bool = False
    """Whether its value must be on no command line of a child process and in no record."""
    shortest: int = 0
    """Minimum length of a secret value on the command line, in characters."""
    outside_container: str = ""
    """Advice for users who give it where no container is started, which is an error; empty if nothing is lost."""
    has_variable: bool = False
    """Whether ``DISTTEST_NAME`` is read if the flag is not given."""
    inputs: tuple[str, ...] = ()
    """Commands whose actions have it as an input."""
    input_default: str = ""
    """Value that an action passes if its user gives none, if it differs from the option's default."""
    repeated: bool = False
    """Whether the command that repeats one test of a run includes it."""
    hidden: bool = False
    for_command: bool = False
    """Whether only the command reads it, and no pytest process. A project's file may set it, too."""
    in_file: bool = True
    """Whether a project's file may set it, if it is an option of ``run``."""
    elsewhere: bool = False
    """Whether it configures a run on other machines. As an input of the action it is for the nodes."""
    title: str = ""
    """Heading of its group in the help of the command; empty for the usual groups."""
    common: bool = False
    """Whether the help of ``disttest run`` lists it first."""
    of_every_run: bool = False
    """Whether commands of plugins that run tests have it, too."""
    shapes_tests: bool = False
    """Whether tests and worlds of a run depend on it. Commands that only collect show no other options of a run."""
    aliases: tuple[str, ...] = ()
    """Other flags for it."""
    no_flag: bool = False
    """Whether only the project's file and the variable set it."""
    formerly: tuple[tuple[str, str], ...] = ()
    """Earlier names, each with its replacement. An earlier name is refused with it for one release."""

    @property
    def field(self) -> str:
        """Name as an argument, and as a field of a record."""
        return self.name.replace("-", "_")

    def of(self, settings: PluginSettings) -> Any:
        """Return the value of a plugin's option in a run.

        Args:
            settings: the options of the run, or the part for worlds and ranks, which has no secret options.
        """
        given = getattr(settings, "secret_options", {}) if self.secret else settings.plugin_options
        text = given.get(self.field)
        return self.default if text is None else self.type.parse(text)

    @property
    def flag(self) -> str:
        """Flag on the command line."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"DISTTEST_{self.field.upper()}"

    @property
    def is_switch(self) -> bool:
        """Whether the flag without a value means ``true``."""
        return self.type is SWITCH

    @property
    def form(self) -> str:
        """Placeholder of the value in help and docs."""
        return f"[{self.type.form}]" if self.type.bare else self.type.shown_form

    @property
    def description(self) -> str:
        """Help text with the default, for a flag whose values are listed next to it."""
        shown = self.otherwise or self.shown_default
        return f"{self.help.removesuffix('.')} (default: {shown})." if shown else self.help

    @property
    def input_description(self) -> str:
        """Help text with values and default, for an input of the action."""
        lower = f"{self.description[0].lower()}{self.description[1:]}"
        if self.many and not self.secret:
            return f"One {self.type.form} a line: {lower}"
        if self.type.shown_choices:
            *others, last = self.type.shown_choices
            return f"{', '.join(others)} or {last}: {lower}" if others else f"{last}: {lower}"
        return self.description

    @property
    def shown_default(self) -> str:
        """The default as text; empty for a default that says nothing."""
        is_said = self.default is not None and self.default is not False and self.default not in ("", ())
        return self.type.show(self.default) if is_said else ""


def rows_of(*commands: str) -> Any:
    """Return a maker of rows for these commands; by default each row is an input of their actions."""

    def make(
        name: str, type_: Type, help_: str, *, inputs: tuple[str, ...] = commands, **more: Any
    ) -> Option:
        return Option(name=name, type=type_, help=help_, commands=commands, inputs=inputs, **more)

    return make


def of_every_run(
    name: str, type_: Type, help_: str, *, plan: bool = False, inputs_of_action: bool = True, **more: Any
) -> Option:
    """Return an option of every run: a variable, an option of the pytest plugin, passed between processes as text."""
    inputs: tuple[str, ...] = ("run", "plan") if plan else ("run",)
    if not inputs_of_action or more.get("no_flag"):
        inputs = ()
    return Option(
        name=name,
        type=type_,
        help=help_,
        commands=("run", "list", "plan"),
        of_every_run=True,
        has_variable=True,
        inputs=inputs,
        **more,
    )
