"""The hooks of ``disttest explain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from disttest.extras.history.hooks import FILE as HISTORY
from disttest.hookspecs import hookimpl
from disttest.options.option import Option, rows_of
from disttest.options.values import SWITCH, one_of, path

if TYPE_CHECKING:
    import click

    from disttest.model import TestResult


_explain = rows_of("explain")
TEXT, ISSUE = "text", "github-issue"

OPTIONS = (
    _explain(
        "packet",
        SWITCH,
        "Write all evidence of one test into a folder: report, JSON, logs, environment, history, commands.",
        default=False,
        inputs=(),
    ),
    _explain(
        "output",
        path("PATH"),
        "Folder of the packet; a name with .zip makes an archive.",
        otherwise="packet-TEST",
        inputs=(),
    ),
    _explain(
        "format",
        one_of(TEXT, ISSUE),
        "Format of the output; github-issue prints the body of an issue about one test.",
        default=TEXT,
        inputs=(),
    ),
    _explain(
        HISTORY.name,
        HISTORY.type,
        "History file with the past of the test.",
        otherwise="the one that the run was given",
        inputs=(),
    ),
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Add the options of a packet."""
    return OPTIONS


@hookimpl
def disttest_message_id(message: str) -> str | None:
    """Find the section of a message."""
    # Imported late: the first call reads the pages of all plugins, and most runs have no failure.
    from disttest.extras.explain.message_page import id_of

    return id_of(message) or None


@hookimpl
def disttest_further_commands(result: TestResult) -> Mapping[str, str]:
    """Name the command that prints the section of the message."""
    # A result that a reader of the journal made, for a test without one, has no id.
    known = result.message_id or disttest_message_id(result.message)
    return {"what to do": f"disttest explain {known}"} if known else {}


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest explain``."""
    from disttest.extras.explain.command import explain

    group.add_command(explain)
