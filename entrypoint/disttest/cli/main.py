"""The ``disttest`` command: it parses, calls, prints, and is the only module that exits the process.

It imports neither torch nor pytest, so that ``disttest --help`` answers immediately.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import click

import disttest
from disttest.cli.commands import list_command, report, run_command
from disttest.cli.purposes import PURPOSES, Purpose
from disttest.cli.words import warn, warn_by_plugins
from disttest.errors import DisttestError, ExitCode
from disttest.host.process_limits import check_limits
from disttest.options.environment import ci_job, environment
from disttest.options.flags import RegistryCommand
from disttest.options.registry import replacement_of
from disttest.output import drain_streams, outlet, steady_streams
from disttest.plugin_manager import plugin_manager

_WORDS = {"record": ("run", "--record", "all")}
"""Aliases of a command with options."""


class _DefaultRun(click.Group):
    """Group in which ``disttest ddp`` means ``disttest run ddp``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.spelled_out(args))

    def spelled_out(self, args: Sequence[str]) -> list[str]:
        """Return the arguments with the name of the command first."""
        args = [*_WORDS.get(args[0], args[:1]), *args[1:]] if args else []
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            args = ["run", *args]
        return args

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by purpose, each with the whole first sentence of its help."""
        del ctx
        for purpose in Purpose:
            rows = [
                (name, each.get_short_help_str(limit=sys.maxsize))
                for name, each in self.commands.items()
                if not each.hidden and PURPOSES.get(name, Purpose.OTHER) is purpose
            ]
            if rows:
                with formatter.section(purpose):
                    formatter.write_dl(rows)


@click.group(cls=_DefaultRun, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(disttest.__version__)
def command() -> None:
    """Run distributed PyTorch tests: real ranks, one verdict for each test, every rank's log kept.

    \b
    disttest ddp                      a bundled suite (see: disttest list)
    disttest run tests/ -- -k reduce  your own tests; words after -- are for pytest
    """


def _leave(code: int, *, shown: bool = False) -> NoReturn:
    """Exit the process.

    Args:
        code: exit code.
        shown: whether the output is the command's only purpose, so that lost output is an error.
    """
    try:
        drain_streams()
    # Ctrl-C ends the wait for a slow reader of the output.
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # noqa: TID251
    behind = outlet()
    sys.exit(code or (_unread(behind.broken) if shown and behind is not None else ExitCode.PASSED))  # noqa: TID251


def _unread(number: int) -> int:
    """Return the exit code of a command whose output was lost: 141 if the reader closed it (as for SIGPIPE)."""
    if not number:
        return ExitCode.PASSED
    if number == errno.EPIPE:
        return 128 + signal.SIGPIPE
    warn(f"the output could not be written: {os.strerror(number)}")
    return ExitCode.INTERNAL


_HELP = ("-h", "--help", "--version")


def _run(*typed: Any) -> NoReturn:
    from disttest.cli.run_tests import run_tests

    _leave(run_tests(*typed))


command.add_command(run_command(_run))
command.add_command(list_command(_leave))
command.add_command(report)
plugin_manager().call("disttest_addcommands", group=command)


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments at ``--``: disttest's own, and pytest's."""
    split = words.index("--") if "--" in words else len(words)
    return list(words[:split]), list(words[split + 1 :])


def _without_plugin_words(words: Sequence[str]) -> list[str]:
    """Remove ``-p no:NAME`` for commands that run no pytest; it has taken effect already."""
    runs = words[:1] and words[0] not in command.commands and not words[0].startswith("-")
    if runs or _asked(words).collects:
        return list(words)
    kept: list[str] = []
    for word in words:
        if kept and kept[-1] == "-p" and word.startswith("no:"):
            kept.pop()
        else:
            kept.append(word)
    return kept


def _asked(words: Sequence[str]) -> RegistryCommand:
    """Return the command that the first word names, or a command without traits."""
    named = command.commands.get(words[0]) if words else None
    return named if isinstance(named, RegistryCommand) else RegistryCommand(name=None)


def _tell_plugins(exit_code: int, message: str = "") -> None:
    """Tell plugins that the command failed; one that fails itself does not change the exit code."""
    # A plugin that fails here would end the command with 1, which means that a test failed.
    with _warned():
        if message and (known := plugin_manager().call("disttest_message_id", message=message)):
            warn(f"what to do: disttest explain {known}")
    with _warned():
        warn_by_plugins("disttest_command_failed", exit_code=exit_code, environ=environment())


@contextlib.contextmanager
def _warned() -> Iterator[None]:
    """Turn an error into a line of standard error."""
    try:
        yield
    except (DisttestError, click.ClickException) as error:
        warn(str(error))


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line. Words after ``--`` are pytest's; disttest's errors become one line and their exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # an ignored one is inherited, and loses the exits of children
    asked = _asked(words)
    shown = asked.shows or words[:1] in ([word] for word in _HELP)
    try:
        # A channel has another disttest process at its end: a write that fails must be noticed.
        if not asked.is_channel:
            # The relayed command has made its own output harmless, and its commands to the CI service have to
            # pass.
            job = None if asked.relays else ci_job()
            steady_streams(job.shield if job else None)
        ours, rest = parted(words)
        ours = _without_plugin_words(ours)
        if not shown:
            # Below these limits of the shell, imports and plugins fail with messages that name something
            # else.
            check_limits()
        # Standalone, click would print its errors and exit with 2, which means interrupted here and in
        # pytest.
        code = command.main(args=ours, obj=rest, prog_name="disttest", standalone_mode=False)
    except DisttestError as error:
        warn(str(error))
        _tell_plugins(error.exit_code, str(error))
        _leave(error.exit_code)
    except click.UsageError as error:
        _tell_plugins(ExitCode.USAGE)
        if isinstance(error, click.NoSuchOption) and (moved := replacement_of(error.option_name)):
            warn(moved)
            _leave(ExitCode.USAGE)
        error.show()
        if (
            isinstance(error, click.NoSuchOption)
            and error.ctx
            and _asked([error.ctx.info_name or ""]).collects
        ):
            warn(
                f"put options of pytest after --, as in: disttest {error.ctx.info_name} PATH -- {error.option_name}"
            )
        _leave(ExitCode.USAGE)
    except click.Abort:
        _leave(130)
    _leave(code or ExitCode.PASSED, shown=shown)
