"""Hooks of plans, shards and merged results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.options.option import PLANS, Option, rows_of
from disttest.options.values import COUNT, SWITCH, WHOLE, Type, one_of, path, text

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.cli.run_request import RunRequest
    from disttest.model import TestCase
    from disttest.runtime.controller.session import TestSelection

NAME = "shards"


_plan, _merge = partial(rows_of("plan"), title=PLANS), partial(rows_of("merge"), title=PLANS)
_run = partial(rows_of("run"), title=PLANS, for_command=True, in_file=False)

RUN_OPTIONS = (
    _run("plan", path("FILE"), "Run a shard of this plan."),
    _run("shard", Type(form="K", parse=WHOLE.parse), "Number of the shard of the plan."),
    _run("revision", text("COMMIT"), "Commit of the tests; must be that of the plan.", default=""),
    rows_of("run")(
        "stale-plan",
        SWITCH,
        "Run a plan made for another commit; new tests go to the last shard.",
        default=False,
        for_command=True,
        has_variable=True,
        no_flag=True,
        inputs=(),
    ),
)
"""Options of ``disttest run`` for a shard."""

PLAN_OPTIONS = (
    _plan(
        "pool",
        text("NAME:GPUS:RUNNERS[:COST]"),
        "A kind of runner; or NAME:SCHEDULER[:PARTITION[:NODESxGPUS[:COST]]], the nodes of slurm or kubernetes.",
        many=True,
    ),
    _plan("nodes", COUNT, "Spread each world over N nodes of a scheduler's pool.", default=1),
    _plan(
        "labels",
        text("NAME=LABEL,…"),
        "Labels of a pool's runners, for runs-on.",
        many=True,
        otherwise="its name",
    ),
    _plan("shards", COUNT, "Split over N equal runners instead."),
    _plan("by", one_of("world-size"), "One shard for each world size instead."),
    _plan("hardware", text("MODEL"), "GPU model of the runners, or cpu.", default=""),
    _plan("revision", text("COMMIT"), "Commit of the tests, recorded in the plan.", default=""),
    _plan("output", path("FILE"), "File of the plan.", default=Path("plan.json")),
    _plan(
        "matrix",
        path("FILE|-"),
        "File of the GitHub Actions matrix (one line).",
        input_default="matrix.json",
    ),
    _plan(
        "allow-empty",
        SWITCH,
        "Accept a plan without tests: write the no-op entry and exit with 0.",
        default=False,
    ),
)

MERGE_OPTIONS = (
    _merge("plan", path("FILE"), "Plan of the shards.", otherwise="the plan.json in a DIR"),
    _merge("shards", COUNT, "Number of shards, if there is no plan.", default=0, otherwise="any number"),
    _merge("reruns", SWITCH, "Accept two results of one shard as a run and its rerun.", default=False),
    _merge("results", path("DIR"), "Directory of the merged results.", default=Path("merged")),
)

OPTIONS = (*RUN_OPTIONS, *PLAN_OPTIONS, *MERGE_OPTIONS)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Options ``--plan`` and ``--shard`` of runs, and those of the two commands."""
    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest plan`` and ``disttest merge``."""
    from disttest.extras.shards.merge_command import merge_command
    from disttest.extras.shards.plan_command import collect_for_plan, plan_command

    group.add_command(plan_command(collect_for_plan))
    group.add_command(merge_command())


# Before the hook of clusters, which reads the options that a shard sets here (launcher, nodes, partition).
@hookimpl(tryfirst=True)
def disttest_prepare_run(request: RunRequest) -> RunRequest | None:
    """Turn the run into that of a shard if ``--plan`` and ``--shard`` are given."""
    from disttest.extras.shards.shard_run import prepare_shard

    return prepare_shard(request)


@hookimpl
def disttest_select_tests(
    items: Sequence[pytest.Item], describe: Callable[[pytest.Item], TestCase], config: pytest.Config
) -> TestSelection | None:
    """Select the tests of the shard."""
    from disttest.runtime.controller.orders import from_data, order_of

    data = order_of(config).shared.data.get(NAME)
    if data is None:
        return None
    from disttest.extras.shards.shard_run import ShardChoice, select_shard
    from disttest.runtime.controller.session import RUN

    run = config.stash[RUN]
    tests, skipped = [*map(describe, items)], [entry.nodeid for entry, _ in run.skipped.values()]
    return select_shard(from_data(data, ShardChoice), tests, run.host.device, skipped)
