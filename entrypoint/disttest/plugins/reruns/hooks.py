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
from disttest.planning.targets import suites_dir

if TYPE_CHECKING:
    import pytest

    from disttest.cli.run_request import RunRequest
    from disttest.model import TestCase
    from disttest.results.fold import RunResult
    from disttest.runtime.controller.session import TestSelection


NAME = "reruns"
"""Name of the data for the pytest process: the names of the tests and files that failed."""
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
        names = failed_below(request.targets or (".",), request.options.results, warn)
        files = tuple(
            file for file in dict.fromkeys(name.partition("::")[0] for name in names) if _is_there(file)
        )
        if names and not files:
            warn("--last-failed: the files of the tests that failed are gone: all tests run")
        # Not the names: pytest refuses all of them if one test was renamed, or ran in another world.
        if files:
            data = {**request.data, NAME: list(names)}
            request = dataclasses.replace(request, targets=files, data=data)
    if request.asked.get("repeat") == UNTIL_FAIL:
        request = dataclasses.replace(request, pytest_args=("-x", *request.pytest_args))
    return request


@hookimpl
def disttest_select_tests(
    items: Sequence[pytest.Item], describe: Callable[[pytest.Item], TestCase], config: pytest.Config
) -> TestSelection | None:
    """Select the tests that failed; all of their files if none of them is there any more."""
    from disttest.runtime.controller.orders import order_of
    from disttest.runtime.controller.session import TestSelection

    names: list[str] | None = order_of(config).shared.data.get(NAME)
    if names is None:
        return None
    kept, found = set(), set()
    for item in items:
        if by := set(_names_of(describe(item).selected_by, config)).intersection(names):
            kept.add(item.nodeid)
            found |= by
    gone = [name for name in names if name not in found]
    notes = (("", _describe_gone(gone, all_run=not kept)),) if gone else ()
    return TestSelection(kept=frozenset(kept or (item.nodeid for item in items)), notes=notes)


def _describe_gone(gone: Sequence[str], *, all_run: bool) -> str:
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    then = ": all tests of these files run" if all_run else ""
    return f"--last-failed: {gone[0]}{more} failed before and cannot be found here{then}"


def _names_of(test: str, config: pytest.Config) -> Iterator[str]:
    """Yield the names under which a test, or its file, may be known to have failed."""
    from disttest.runtime.messages.protocol import clean_text

    file, colons, name = test.partition("::")
    # Bundled suites are named by their ids, other tests as they are seen from the start directory.
    for path in (file, os.path.relpath(config.rootpath / file, config.invocation_params.dir)):
        # The journal, from which the names are, hides secrets.
        yield from (clean_text(path), clean_text(f"{path}{colons}{name}"))


def _is_there(file: str) -> bool:
    return Path(file).exists() or (suites_dir() / file).exists()


def failed_below(
    targets: Sequence[str], results: Path | None, warn: Callable[[str], None]
) -> tuple[str, ...]:
    """Return the tests below the targets, and the files, that failed in an earlier run; none if all must run.

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
        return ()
    # A test with several worlds fails once for each, and is named once here.
    failed = dict.fromkeys(_failed(fold(read_events(folder / FILE_NAME))))
    kept = tuple(each for each in failed if any(_covers(target, each) for target in targets))
    if not kept:
        warn(f"--last-failed: none of these tests failed in {folder}: all of them run")
    return kept


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
