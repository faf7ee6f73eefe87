"""The hooks of ``--last-failed`` and ``--repeat until-fail``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.cli.run_tests import RunRequest
    from disttest.options.option import Option


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """``--last-failed``."""
    from disttest.plugins.reruns.option_rows import LAST_FAILED

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
