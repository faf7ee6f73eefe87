"""The hooks of ``--last-failed`` and ``--repeat until-fail``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.options.option import PLANS, Option, rows_of
from disttest.options.values import SWITCH

if TYPE_CHECKING:
    from disttest.cli.run_tests import RunRequest


LAST_FAILED = rows_of("run")(
    "last-failed",
    SWITCH,
    "Run only the tests that failed in the newest results here, or in those of --results; all if none did.",
    default=False,
    aliases=("--lf",),
    title=PLANS,
    for_command=True,
    in_file=False,
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """``--last-failed``."""
    return (LAST_FAILED,)


@hookimpl
def disttest_prepare_run(request: RunRequest) -> RunRequest:
    """Narrow the targets to failed tests; with ``--repeat until-fail``, stop at the first failure."""
    from disttest.cli.words import warn
    from disttest.options.run_rows import UNTIL_FAIL
    from disttest.plugins.reruns.last_failed import only_failed

    if request.settings["last_failed"]:
        targets = only_failed(request.targets or (".",), request.options.results, warn)
        if targets != (".",):  # without a path, pytest finds the tests by its testpaths
            request = dataclasses.replace(request, targets=targets)
    if request.asked.get("repeat") == UNTIL_FAIL:
        request = dataclasses.replace(request, pytest_args=("-x", *request.pytest_args))
    return request
