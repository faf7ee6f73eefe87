"""Commands ``disttest completion`` (code with which a shell completes the command line) and ``disttest man``."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.shell_completion import get_completion_class

import disttest
from disttest.cli.purposes import Purpose, serves
from disttest.errors import MEANINGS, ExitCode
from disttest.options.flags import ShowingCommand
from disttest.options.registry import OPTIONS

VARIABLE = "_DISTTEST_COMPLETE"
"""Set by the shell's code, which asks the command for completions."""
SHELLS = ("bash", "zsh", "fish")


@serves(Purpose.SETUP)
@click.command(cls=ShowingCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion for a shell, as in: eval "$(disttest completion bash)"."""
    made_by = get_completion_class(shell)
    assert made_by is not None
    click.echo(made_by(context.find_root().command, {}, "disttest", VARIABLE).source())


_LATER_CODES = ((129, "ended by SIGHUP"), (130, "ended by Ctrl-C (SIGINT)"), (143, "ended by SIGTERM"))


@serves(Purpose.SETUP)
@click.command(cls=ShowingCommand)
@click.pass_context
def man(context: click.Context) -> None:
    """Print the manual page, as in: disttest man > ~/.local/share/man/man1/disttest.1."""
    group = context.find_root().command
    assert isinstance(group, click.Group)
    click.echo("\n".join(_page(group)))


def _page(group: click.Group) -> Iterator[str]:
    shown = [(name, each) for name, each in group.commands.items() if not each.hidden]
    yield f'.TH DISTTEST 1 "" "disttest {disttest.__version__}" "User Commands"'
    yield from _section(
        "NAME", "disttest \\- distributed PyTorch tests on real ranks, one verdict for each test"
    )
    yield from _section("SYNOPSIS")
    for name, each in shown:
        usage = each.collect_usage_pieces(click.Context(each))
        # One synopsis for each line: troff would fill them into a paragraph.
        yield from (".br", f"\\fBdisttest {_plain(name)}\\fR {_plain(' '.join(usage))}")
    yield from _section("COMMANDS")
    for name, each in shown:
        yield f".SS disttest {_plain(name)}"
        yield _plain(each.help or "")
        yield from _options(each)
    yield from _section("ENVIRONMENT")
    for option in OPTIONS:
        if option.has_variable:
            same = f"{option.name} below [tool.disttest]" if option.no_flag else option.flag
            yield from _entry(option.variable, f"The same as {same}.")
    yield from _section("EXIT STATUS")
    for code in ExitCode:
        yield from _entry(str(code.value), MEANINGS[code])
    for number, meaning in _LATER_CODES:
        yield from _entry(str(number), meaning)


def _section(title: str, *lines: str) -> Iterator[str]:
    yield f".SH {title}"
    yield from lines


def _options(command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None and "--help" not in record[0]:
            yield from _entry(*record)


def _entry(name: str, text: str) -> Iterator[str]:
    yield from (".TP", f"\\fB{_plain(name)}\\fR", _plain(text))


def _plain(text: str) -> str:
    """Escape a text for troff, on one line and without click's marks."""
    line = " ".join(text.replace("\b", "").split()).replace("\\", "\\e").replace("-", "\\-")
    # groff reads bytes as Latin-1. \[uXXXX] is its escape for other characters.
    line = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in line)
    # troff takes a line that begins with a dot or an apostrophe as a request. The zero-width character \&
    # prevents that.
    return f"\\&{line}" if line.startswith((".", "'")) else line
