"""A row of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from disttest.model import Frozen
from disttest.options.values import SWITCH, Type

PLANS = "Plans, timings and floors"
"""A title of options."""
IN_CONTAINER = ("run", "plan", "doctor")
"""Commands that import tests, and so need torch: their actions may start the image. The others run on the host."""


class PluginSettings(Protocol):
    """Settings that have the options of plugins in a run."""

    @property
    def plugin_options(self) -> Mapping[str, str]:
        """Field of an option -> its value as text, for those that were given."""


class Option(Frozen):
    """An option of one or more commands."""

    name: str
    type: Type
    help: str
    """One sentence, without the default, which is put behind it."""
    commands: tuple[str, ...]
    default: Any = None
    """The value unless it is given."""
    otherwise: str = ""
    """What happens unless it is given, where the default does not say it."""
    by_command: str = ""
    """What the command gives where nobody does; plain pytest has the default."""
    many: bool = False
    """It is given once for each value; as an input of the action, one a line."""
    secret: bool = False
    """Its value appears on no command line of a child process and in no record."""
    shortest: int = 0
    """Characters that a value of a secret option needs as a flag."""
    in_environment: bool = False
    """The input of the action travels in the option's variable, as it may hold a secret; a command line can be read by all."""
    contained: str = ""
    """Advice to those who give it where no container is started, which is an error; empty: nothing is lost there."""
    has_variable: bool = False
    """Whether ``DISTTEST_NAME`` is read where the flag is not given."""
    inputs: tuple[str, ...] = ()
    """Commands of whose actions it is an input."""
    input_default: str = ""
    """What an action gives where its user gives nothing, if that is not the option's own default."""
    repeated: bool = False
    """Whether the command that repeats one test of a run has it."""
    hidden: bool = False
    for_command: bool = False
    """Whether only the command reads it, and no pytest process; a project's file may have it, too."""
    in_file: bool = True
    """Whether a project's file may have it, if it is an option of ``run``."""
    elsewhere: bool = False
    """Whether it is about a run on other machines; an input of the action that has it is for the nodes."""
    title: str = ""
    """Heading of its group in the help of the command; empty for the usual ones."""
    of_every_run: bool = False
    """Whether commands of plugins that run tests have it, too."""
    shapes_tests: bool = False
    """Whether the tests and worlds of a run depend on it; commands that only collect show no other option of a run."""
    aliases: tuple[str, ...] = ()
    """Other flags for it."""
    no_flag: bool = False
    """Whether the project's file and the variable set it, but no flag."""
    formerly: tuple[tuple[str, str], ...] = ()
    """Earlier names, each with the words for it now; an earlier name is refused with these for one release."""

    @property
    def field(self) -> str:
        """Its name as an argument, and as a field of a record."""
        return self.name.replace("-", "_")

    def of(self, settings: PluginSettings) -> Any:
        """The value of an option of a plugin in a run.

        Args:
            settings: the options of the run, or the part that worlds and ranks know. Worlds know no secret options.
        """
        given = getattr(settings, "secret_options", {}) if self.secret else settings.plugin_options
        text = given.get(self.field)
        return self.default if text is None else self.type.parse(text)

    @property
    def flag(self) -> str:
        """On the command line."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"DISTTEST_{self.field.upper()}"

    @property
    def is_switch(self) -> bool:
        """Whether the flag may stand alone, for ``true``."""
        return self.type is SWITCH

    @property
    def form(self) -> str:
        """What stands behind the flag in help and docs."""
        return f"[{self.type.form}]" if self.is_switch else self.type.shown_form

    @property
    def description(self) -> str:
        """The help with the default: for a flag, whose values stand beside it."""
        shown = self.otherwise or self.shown_default
        return f"{self.help.removesuffix('.')} (default: {shown})." if shown else self.help

    @property
    def input_description(self) -> str:
        """The same for an input of the action, of which a reader sees no more than this."""
        lower = f"{self.description[0].lower()}{self.description[1:]}"
        if self.many and not self.secret:
            return f"One {self.type.form} a line: {lower}"
        if self.type.shown_choices:
            *others, last = self.type.shown_choices
            return f"{', '.join(others)} or {last}: {lower}" if others else f"{last}: {lower}"
        return self.description

    @property
    def shown_default(self) -> str:
        """The default as text; empty for one that says nothing."""
        is_said = self.default is not None and self.default is not False and self.default not in ("", ())
        return self.type.show(self.default) if is_said else ""


def rows_of(*commands: str) -> Any:
    """Makes the rows of these commands, all of them inputs of their actions unless told otherwise."""

    def make(
        name: str, type_: Type, help_: str, *, inputs: tuple[str, ...] = commands, **more: Any
    ) -> Option:
        return Option(name=name, type=type_, help=help_, commands=commands, inputs=inputs, **more)

    return make


def of_every_run(
    name: str, type_: Type, help_: str, *, plan: bool = False, inputs_of_action: bool = True, **more: Any
) -> Option:
    """An option of every run: a variable, an option of the pytest plugin, and handed from process to process as text."""
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
