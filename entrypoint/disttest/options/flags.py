"""The flags of the commands, made from the registry, and those of pytest that are accepted without ``--``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from disttest.errors import UsageError
from disttest.model import Frozen
from disttest.options.environment import environment
from disttest.options.option import Option
from disttest.options.registry import RUN_OPTIONS, groups_of, is_shown, options_of
from disttest.options.values import Type, spell_out

PYTEST_GROUP = "Options of pytest (all others behind --)"


class PytestWord(Frozen):
    """One such option."""

    flags: tuple[str, ...]
    help: str
    commands: tuple[str, ...] = ("run",)
    form: str = ""
    """Placeholder of its value; empty if it has none."""
    many: bool = False
    """Whether it may be repeated, each time with a value."""


_COLLECTING = ("run", "list", "plan")

PYTEST_WORDS = (
    PytestWord(
        flags=("-k",), form="EXPR", help="Only tests whose names match this expression.", commands=_COLLECTING
    ),
    PytestWord(
        flags=("-m",),
        form="MARKS",
        help="Only tests whose marks match this expression.",
        commands=_COLLECTING,
    ),
    PytestWord(
        flags=("-p",),
        form="NAME",
        help="Load a plugin of pytest; no:NAME leaves out one of pytest or disttest, such as no:disttest.html.",
        commands=_COLLECTING,
        many=True,
    ),
    PytestWord(flags=("-x",), help="Stop at the first failure."),
    PytestWord(flags=("--maxfail",), form="N", help="Stop after so many failures."),
    PytestWord(
        flags=("-s",),
        help="Show what tests print, as they print it: each line of a rank with its rank in front.",
    ),
    PytestWord(flags=("-v",), help="Show pytest's own output, with more of it for each further v."),
    PytestWord(
        flags=("--pdb",),
        help="Debug a test where it fails; of a world, the rank that fails first.",
    ),
)
"""All other options are given after ``--``, where pytest's command line begins."""


_GIVEN = "disttest.given"
_ALL = "disttest.all_options"
_OTHERS = "Options"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class RegistryCommand(click.Command):
    """A command whose switches accept an optional value: ``--switch``, ``--switch true``, ``--switch=false``.

    Its help lists the options by the groups of the registry, common ones first. With several groups, ``--help``
    shows the first one, and ``--help-all`` all.
    """

    shows = False
    """Whether its output is its only purpose, so that lost output is an error."""
    collects = False
    """Whether it has pytest collect tests, so that ``-p`` is passed to pytest."""
    is_channel = False
    """Whether its standard output is a channel to another process."""
    relays = False
    """Whether it passes on the output of another disttest command, including the commands to a CI service in it."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with the flags for help."""
        more = [_HELP_ALL] if len(groups_of(self.name or "")) > 1 else []
        return [*super().get_params(ctx), *more]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give each switch its value."""
        switches = {
            flag: each.value for each in self.params if isinstance(each, Switch) for flag in each.opts
        }
        return super().parse_args(ctx, spell_out(args, switches))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        titles = {option.field: title for title, options in groups_of(self.name or "") for option in options}
        place = {field: number for number, field in enumerate(titles)}
        rows = defaultdict(list)
        for param in sorted(self.get_params(ctx), key=lambda param: place.get(param.name or "", len(place))):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                own = PYTEST_GROUP if isinstance(param, PytestOption) else _OTHERS
                rows[titles.get(param.name or "", own)].append(record)
        first = [*list(titles.values())[:1], PYTEST_GROUP]
        is_long = len(groups_of(self.name or "")) > 1
        last = [] if is_long and not ctx.meta.get(_ALL) else [*titles.values()]
        for title in dict.fromkeys([*first, *last, _OTHERS]):
            if rows[title]:
                with formatter.section(title):
                    formatter.write_dl(rows[title])


def _show_all(ctx: click.Context, _parameter: click.Parameter, given: bool) -> None:
    if given:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options and exit.",
)


class ShowingCommand(RegistryCommand):
    """A command whose output is its only purpose."""

    shows = True


class CollectingCommand(RegistryCommand):
    """A command that has pytest collect tests."""

    collects = True


class ListingCommand(CollectingCommand, ShowingCommand):
    """A command that lists the tests that pytest has collected."""


class ChannelCommand(RegistryCommand):
    """A command that another process reads and writes."""

    is_channel = True


class RelayingCommand(RegistryCommand):
    """A command that runs another disttest command."""

    relays = True


class Switch(click.Option):
    """A flag with an optional value."""

    def __init__(self, *names: Any, value: Type, **more: Any) -> None:
        super().__init__(*names, **more)
        self.value = value


class PytestOption(click.Option):
    """A flag of pytest, passed to it before the arguments after ``--``."""


def flags(command: str, **types: Type) -> Decorator:
    """Add its flags to a command; ``types`` are the types of options that only the command's own layer knows."""
    # Options of every run stay text, which is passed between processes and parsed by ``resolve_options``; each other
    # one arrives as its value, or as its default.

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        # Decorators apply from the innermost on, and click lists the first one last.
        for word in reversed(PYTEST_WORDS):
            if command in word.commands:
                function = pytest_flag(word)(function)
        for option in reversed(options_of(command)):
            if not option.no_flag:
                shown = is_shown(option, command)
                function = _flag(option, types.get(option.field, option.type), shown=shown)(function)
        return function

    return give


def pytest_word(flag: str) -> Decorator:
    """Add a flag of pytest to a plugin's command. Put it below :func:`flags`: it is passed on like those of ``run``."""
    return next(pytest_flag(word) for word in PYTEST_WORDS if flag in word.flags)


def was_given(option: Option) -> bool:
    """Return whether the command line of the running command or the variable sets the option, even to its default."""
    return option in click.get_current_context().meta.get(_GIVEN, ())


def _flag(option: Option, type_: Type, *, shown: bool) -> Decorator:
    variable = f"  [{option.variable}]" if option.has_variable else ""
    kind: dict[str, Any] = {"cls": Switch, "value": type_} if type_.bare else {}
    return click.option(
        *option.aliases,
        option.flag,
        option.field,
        **kind,
        metavar=option.form,
        help=option.description + variable,
        multiple=option.many,
        hidden=not shown,
        callback=_callback(option, type_),
    )


def pytest_flag(word: PytestWord, *, hidden: bool = False) -> Decorator:
    """Add a flag of pytest to a command."""

    def set_value(context: click.Context, _parameter: click.Parameter, given: Any) -> None:
        if given:
            values = given if word.many else [given]
            words = [part for value in values for part in (word.flags[0], value)]
            # Before the words behind `--`: in pytest the last of two equal options counts, and that is the
            # user's.
            context.obj[:0] = words if word.form else [word.flags[0]] * given

    valued = {"metavar": word.form, "multiple": word.many} if word.form else {"count": True}
    return click.option(
        *word.flags,
        cls=PytestOption,
        help=word.help,
        callback=set_value,
        expose_value=False,
        hidden=hidden,
        **valued,
    )


def _callback(option: Option, type_: Type) -> Callable[..., Any]:
    if option.secret:
        return partial(_joined, option)
    return _kept if option in RUN_OPTIONS else partial(_parsed, option, type_)


def _joined(
    option: Option, _context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> str:
    if any(len(value.strip()) < option.shortest for value in values):
        raise UsageError(
            f"{parameter.opts[0]}: a value of fewer than {option.shortest} characters cannot be hidden"
        )
    return "\n".join(values)


def _kept(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    return text


def _parsed(
    option: Option, type_: Type, context: click.Context, _parameter: click.Parameter, given: Any
) -> Any:
    # CI services pass an empty text for an input that was not given.
    texts, source = [text for text in (given if option.many else [given]) if text], option.flag
    if not texts and option.has_variable and (text := environment().get(option.variable)):
        texts, source = [text], option.variable
    if texts:
        context.meta.setdefault(_GIVEN, []).append(option)
    values = tuple(_parse(type_, text, source) for text in texts)
    if option.many:
        return values
    return values[0] if values else option.default


def _parse(type_: Type, text: str, source: str) -> Any:
    try:
        return type_.parse(text)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
