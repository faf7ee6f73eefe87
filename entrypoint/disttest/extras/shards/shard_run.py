"""Run one shard of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttest.errors import UsageError
from disttest.extras.cluster.option_rows import RUN_OPTIONS as CLUSTER_OPTIONS
from disttest.extras.shards.hooks import NAME
from disttest.extras.shards.merge_command import read_plan
from disttest.extras.shards.shard_plan import (
    Grant,
    ShardFacts,
    check_device,
    check_revision,
    check_unchanged,
    decode_plan,
    find_shard,
    select,
)
from disttest.model import Frozen, RunPart, TestCase
from disttest.plugin_manager import plugin_manager
from disttest.safe_open import read_input

if TYPE_CHECKING:
    from disttest.cli.run_request import RunRequest
    from disttest.runtime.controller.session import TestSelection


class ShardChoice(Frozen):
    """The shard that a run selects."""

    plan: Path
    shard: int


def prepare_shard(request: RunRequest) -> RunRequest | None:
    """Return the request for a shard; None if the run has no plan.

    Raises:
        UsageError: the plan is unreadable or changed, has no such shard, or is for another commit or other nodes.
    """
    asked = request.settings
    file, number = asked["plan"], asked["shard"]
    if (file is None) != (number is None):
        raise UsageError("--plan FILE and --shard K must be given together")
    plan = read_plan(file)
    if plan is None:
        return None
    check_unchanged(plan, file)
    shard = find_shard(plan, number)
    if not asked["stale_plan"]:
        check_revision(plan, asked["revision"])
    plugin_manager().call("disttest_check_collection", options=request.options)
    request = dataclasses.replace(
        request,
        part=RunPart(plan_id=plan.plan_id, shard=number, is_empty=shard is None),
        data={**request.data, NAME: ShardChoice(plan=file.absolute(), shard=number)},
        # The plan travels with the results, so that a merge finds the tests of missing shards.
        attachments={**request.attachments, "plan.json": file},
    )
    return with_grant(request, shard.grant) if shard is not None and shard.grant is not None else request


def with_grant(request: RunRequest, grant: Grant) -> RunRequest:
    """Return the request with the nodes of a scheduler that the shard asks for.

    Raises:
        UsageError: ``--nodes`` differs from that of the plan.
    """
    named = {row.field for row in request.given_settings}
    granted = granted_options(request.settings, grant, asked_nodes="nodes" in named)
    rows = [row for row in CLUSTER_OPTIONS if row.field in granted and row.field not in named]
    return dataclasses.replace(
        request,
        settings={**request.settings, **granted},
        given_settings=(*request.given_settings, *rows),
    )


def granted_options(asked: Any, grant: Grant, *, asked_nodes: bool) -> dict[str, Any]:
    """Return the cluster options that a shard sets, by field."""
    if asked_nodes and asked["nodes"] != grant.spread:
        raise UsageError(
            f"--nodes {asked['nodes']} differs from the plan, which was made with --nodes {grant.spread}; leave it out"
        )
    return {
        "launcher": asked["launcher"] or grant.scheduler,
        # Always that of the plan, which is part of the worlds and their ids.
        "nodes": grant.spread,
        "partition": asked["partition"] or grant.partition,
        "jobs": 1,  # a shard is one allocation; it is not divided again
    }


def select_shard(
    choice: ShardChoice, tests: Sequence[TestCase], device: str, skipped: Collection[str] = ()
) -> TestSelection:
    """Select the tests of a shard that exist.

    Args:
        choice: the shard.
        tests: collected tests.
        device: device of the ranks on this machine.
        skipped: files, classes and folders that skipped themselves.

    Raises:
        UsageError: the file is not a plan, or the plan is for another device.
        pytest.UsageError: masked names are equal.
        NotEnoughDevices: the shard needs GPUs.
    """
    from disttest.runtime.controller.session import TestSelection, check_names

    # Of all tests: a merge counts equal names in two shards as one test.
    check_names({test.nodeid for test in tests})
    plan = decode_plan(read_input(choice.plan), str(choice.plan))
    selection = select(plan, choice.shard, tests)
    check_device(plan, choice.shard, selection, device)
    return TestSelection(
        kept=frozenset(selection.run),
        notes=selection.notes(skipped),
        data=ShardFacts(vanished=selection.vanished),
    )
