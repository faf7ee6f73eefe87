"""The hooks of masking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disttest.hookspecs import hookimpl
from disttest.options.option import Option, of_every_run
from disttest.options.values import LINES
from disttest.plugins.masking.masker import SHORTEST, masker

if TYPE_CHECKING:
    from disttest.cli.run_request import RunRequest
    from disttest.options.run import RunOptions
    from disttest.outgoing import OutputFilter


MASK = of_every_run(
    "mask",
    LINES,
    "Hide this value in logs and reports; once for each, or one a line.",
    default=(),
    many=True,
    secret=True,
    shortest=SHORTEST,
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """``--mask``."""
    return [MASK]


@hookimpl
def disttest_output_filter() -> OutputFilter:
    """Return the masker of this process."""
    return masker


@hookimpl(trylast=True)
def disttest_execute_run(request: RunRequest) -> None:
    """Hide the values of the option before this process runs anything, and share them with its children."""
    from disttest.cli.words import warn
    from disttest.reports.text import count

    masker.share()
    if short := masker.hide(MASK.of(request.options)):
        warn(
            f"{count(len(short), 'line')} to be masked stay visible: they have fewer than {SHORTEST} characters, or are "
            "part of a word of the reports, such as failed"
        )


@hookimpl
def disttest_set_options(options: RunOptions) -> Mapping[str, Any]:
    """Hide the values of the variable in runs of plain pytest."""
    masker.hide(MASK.of(options))
    return {}
