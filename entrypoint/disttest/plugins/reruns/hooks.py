"""The hooks of ``--last-failed`` and ``--repeat until-fail``."""

from __future__ import annotations

import dataclasses
import os.path
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.options.option import PLANS, Option, rows_of
from disttest.options.values import SWITCH

if TYPE_CHECKING:
    from disttest.cli.run_request import RunRequest
    from disttest.results.fold import RunResult


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

    if request.settings["last_failed"]:
        targets = only_failed(request.targets or (".",), request.options.results, warn)
        if targets != (".",):  # without a path, pytest finds the tests by its testpaths
            request = dataclasses.replace(request, targets=targets)
    if request.asked.get("repeat") == UNTIL_FAIL:
        request = dataclasses.replace(request, pytest_args=("-x", *request.pytest_args))
    return request


def only_failed(targets: Sequence[str], results: Path | None, warn: Callable[[str], None]) -> tuple[str, ...]:
    """Return the tests below the targets that failed in an earlier run; all targets if none did.

    Args:
        targets: paths, node ids and suites, as the user named them.
        results: results directory of that run; None for the newest one here.
        warn: receives a message if all targets run.
    """
    from disttest.cli.stored_run import find_run
    from disttest.results.fold import fold
    from disttest.results.journal import FILE_NAME, read_events

    folder = results or find_run(())[0]
    if not (folder / FILE_NAME).is_file():
        warn(f"--last-failed: there are no results in {folder}: all tests run")
        return tuple(targets)
    # A test with several worlds fails once for each, and is named once here.
    failed = dict.fromkeys(_failed(fold(read_events(folder / FILE_NAME))))
    kept = tuple(each for each in failed if any(_covers(target, each) for target in targets))
    if not kept:
        warn(f"--last-failed: none of these tests failed in {folder}: all of them run")
    return kept or tuple(targets)


def _failed(run: RunResult) -> Iterator[str]:
    from disttest.results.repeat import seen_from_start, target_of

    yield from (seen_from_start(error.nodeid, run) for error in run.collection_errors)
    yield from (target_of(outcome.test, run) for outcome in run.bad)


def _covers(target: str, failed: str) -> bool:
    """Return whether a target contains a test: the test itself, its function, class, file, suite, or a folder above."""
    file, colons, name = target.partition("::")
    # Failed tests are named from here.
    whole = f"{os.path.relpath(file)}{colons}{name}"
    inside = failed.startswith((f"{whole}/", f"{whole}::", f"{whole}["))
    return failed == whole or inside or (whole == "." and not failed.startswith(".."))
