"""The flags of the commands, made from the registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from disttest.errors import UsageError
from disttest.masking import SHORTEST
from disttest.options.environment import environment
from disttest.options.option import Option
from disttest.options.registry import RUN_OPTIONS, options_of
from disttest.options.values import Type, spell_out

_GIVEN = "disttest.given"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Command(click.Command):
    """A command whose switches may stand alone or have a value: ``--switch``, ``--switch true``, ``--switch=false``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give each switch its value."""
        switches = {flag for each in self.params if isinstance(each, _Switch) for flag in each.opts}
        return super().parse_args(ctx, spell_out(args, switches))


class _Switch(click.Option):
    """A flag that may stand alone."""


def flags(command: str, **types: Type) -> Decorator:
    """Give a command its flags; ``types`` are those of options whose values only the command's own layer knows.

    Options of every run stay text, which is handed from process to process and parsed by ``resolve_options``; each
    other one arrives as its value, or as its default.
    """

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options_of(command)):
            function = _flag(option, types.get(option.field, option.type))(function)
        return function

    return give


def was_given(option: Option) -> bool:
    """Whether the command line of the running command, or the variable, has the option, perhaps with its default."""
    return option in click.get_current_context().meta.get(_GIVEN, ())


def _flag(option: Option, type_: Type) -> Decorator:
    variable = f"  [{option.variable}]" if option.has_variable else ""
    return click.option(
        option.flag,
        option.field,
        cls=_Switch if option.is_switch else click.Option,
        metavar=f"[{type_.form}]" if option.is_switch else type_.form,
        help=option.description + variable,
        multiple=option.many,
        hidden=option.hidden,
        callback=_callback(option, type_),
    )


def _callback(option: Option, type_: Type) -> Callable[..., Any]:
    if option.secret:
        return _joined
    return _kept if option in RUN_OPTIONS else partial(_parsed, option, type_)


def _joined(_context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str:
    if any(len(value.strip()) < SHORTEST for value in values):
        raise UsageError(f"{parameter.opts[0]}: a value of fewer than {SHORTEST} characters cannot be hidden")
    return "\n".join(values)


def _kept(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    return text


def _parsed(
    option: Option, type_: Type, context: click.Context, _parameter: click.Parameter, given: Any
) -> Any:
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
