"""The options of floors, and the check of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from disttest.hookspecs import hookimpl
from disttest.options.option import PLANS, Option, rows_of
from disttest.options.values import RATIO, SWITCH, WHOLE, Type
from disttest.plugins.floors.floors import Floors, check_floors, idle_suites, read_manifest

if TYPE_CHECKING:
    from disttest.results.conclusion import Demands
    from disttest.results.fold import RunResult

_run = partial(rows_of("run"), title=PLANS, for_command=True, in_file=False)
_both = partial(rows_of("run", "merge"), title=PLANS, for_command=True, in_file=False)

OPTIONS = (
    _both("min-tests", WHOLE, "Fail if fewer tests ran; skipped ones did not.", default=0, otherwise="0"),
    _both(
        "min-worlds",
        WHOLE,
        "Fail if fewer tests ran in a world; skipped ones did not.",
        default=0,
        otherwise="0",
    ),
    _both("max-skip-ratio", RATIO, "Fail if a larger part was skipped, from 0 to 1.", default=1.0),
    _both("expect", Type(form="FILE", parse=read_manifest), "Fail if a test named in this file did not run."),
    _run(
        "strict",
        SWITCH,
        "Fail (exit code 6) if a suite cannot run here: all of it was skipped.",
        default=False,
    ),
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """All of them."""
    return OPTIONS


@hookimpl
def disttest_check_run(run: RunResult, settings: Mapping[str, Any]) -> Demands:
    """Return the floors that the run has missed."""
    from disttest.results.conclusion import Demands

    floors = Floors(**{row.field: settings.get(row.field, row.default) for row in OPTIONS})
    return Demands(idle=idle_suites(run) if floors.strict else (), broken=check_floors(run, floors))
