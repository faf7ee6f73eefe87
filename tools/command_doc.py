"""Writes docs/command.md from the commands and the registry of options; with --check, only says whether it is up to date."""

from __future__ import annotations

from collections.abc import Iterator

import click
from generated_page import cell, write_or_check

from disttest.cli.main import command
from disttest.errors import MEANINGS, ExitCode
from disttest.options.option import Option
from disttest.options.registry import WITHOUT_FLAG, groups_of

HEAD = """# The command

Made by `make docs` from the commands themselves; do not edit. `disttest COMMAND --help` and `disttest man` say the same.

`disttest SUITE|PATH…` without the name of a command is `disttest run`. An option with a variable can be given by it; a project's
own values stand in `[tool.disttest]` of its `pyproject.toml` under the names of the options (secrets excepted). A flag wins over
the variable, the variable over the file; `disttest config` shows what holds, and from where. Under plain pytest the options of a
run have `--disttest-` in front (`--mask` is the variable only), and in a workflow they are inputs of [the action](action.md).
"""
FOOT = """| 128+n | signal n has ended it: 129 hang-up, 130 Ctrl-C, 143 SIGTERM |

A reader of the output that goes away (`| head`) or has no room changes nothing of this; `list`, `explain`, `trend` and `plan`, of
which nothing but the output is wanted, end with 141 or 3 then."""

_PARENT = click.Context(command, **command.context_settings)
"""click remembers in a command which flags of help the first context had that asked."""


def main() -> int:
    """Write the page, or compare it."""
    return write_or_check("command.md", _page(), __doc__)


def _page() -> Iterator[str]:
    yield HEAD
    for name, each in command.commands.items():
        if not each.hidden:
            yield from _command(name, each)
    yield "## Exit codes\n"
    yield "| code | what has happened |"
    yield "|---|---|"
    yield from (f"| {code.value} | {MEANINGS[code]} |" for code in ExitCode)
    yield FOOT


def _command(name: str, each: click.Command) -> Iterator[str]:
    usage = " ".join(
        piece
        for piece in each.collect_usage_pieces(click.Context(each, parent=_PARENT))
        if piece != "[OPTIONS]"
    )
    yield f"## {name}\n"
    yield f"`disttest {name} {usage}`".replace(" `", "`") + "\n"
    yield " ".join((each.help or "").replace("\b", "").split()) + "\n"
    groups = [
        (title, [option for option in options if not option.hidden]) for title, options in groups_of(name)
    ]
    for title, options in groups:
        if options:
            yield from _table(title if len(groups) > 1 else "", options)


def _table(title: str, options: list[Option]) -> Iterator[str]:
    if title:
        yield f"### {title}\n"
    if title == WITHOUT_FLAG:
        yield "Set them below `[tool.disttest]` in `pyproject.toml`, or by their variables.\n"
    variables = any(option.has_variable for option in options)
    yield f"| option |{' variable |' if variables else ''} meaning |"
    yield f"|---|{'---|' if variables else ''}---|"
    for option in options:
        variable = f" `{option.variable}` |" if option.has_variable else " |" if variables else ""
        names = ", ".join((*option.aliases, option.flag))
        shown = f"{option.name} = {option.form}" if option.no_flag else f"{names} {option.form}"
        yield f"| `{cell(shown)}` |{variable} {cell(option.description)} |"
    yield ""


if __name__ == "__main__":
    raise SystemExit(main())
