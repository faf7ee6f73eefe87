"""Command ``disttest plan``: assign tests to runners, written as ``plan.json`` and as a matrix of GitHub Actions."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.cli.words import warn
from disttest.errors import ExitCode, UsageError
from disttest.extras.cluster.place import Size, scheduler_of, size_of
from disttest.extras.shards.pools import POOL_FORM, Pool, parse_pools
from disttest.extras.shards.shard_plan import (
    Plan,
    encode_plan,
    plan_by_world_size,
    plan_equal_shards,
    plan_shards,
    render_matrix,
)
from disttest.model import TestCase
from disttest.options.environment import environment, remove_from_environment
from disttest.options.flags import ListingCommand
from disttest.options.flags import flags as flags_of
from disttest.options.project_file import read_project_settings
from disttest.options.registry import RUN_OPTIONS, SECRET_VARIABLES, secrets_in
from disttest.options.run import RunOptions, by_command, filled, resolve_options
from disttest.outgoing import outgoing
from disttest.planning.backends import is_accelerator
from disttest.planning.targets import resolve_targets
from disttest.planning.timings import Timings
from disttest.plugin_manager import plugin_manager
from disttest.reports.text import count
from disttest.reports.write import write_whole
from disttest.results.durations import read_timings

if TYPE_CHECKING:
    from disttest.runtime.controller.target_host import TargetHost


def collect_for_plan(
    targets: tuple[str, ...],
    flags: dict[str, str | None],
    pytest_args: Sequence[str],
    gpus: int,
    host: TargetHost | None,
) -> Sequence[TestCase]:
    """Collect the tests of a plan. A test that cannot be collected would be missing in all shards, so it is an error.

    Args:
        targets: targets of the plan.
        flags: options of the runs, by their names for pytest.
        pytest_args: further arguments for pytest.
        gpus: GPUs of the largest runner; 0 if unknown.
        host: machine to collect for; None for a runner, which may have other GPUs than this machine.

    Raises:
        UsageError: a test cannot be collected.
    """
    from disttest.runtime.controller.orders import Shared
    from disttest.runtime.controller.target_host import MOST_GPUS, TargetHost
    from disttest.runtime.supervisor.listing import collect_tests

    options = resolve_options(flags)
    plugin_manager().call("disttest_check_collection", options=options)
    if host is None and is_accelerator(options.device):
        # This machine may have no GPU. Without this, it would collect worlds that no runner has.
        host = TargetHost(gpus=gpus or MOST_GPUS, device=options.device)
    # Shards look for the real names, which a child that hides values would not tell.
    outgoing.hide(secrets_in(environment()))
    remove_from_environment(SECRET_VARIABLES)
    with tempfile.TemporaryDirectory(prefix="disttest-plan-") as folder:
        given = filled(flags, Path(folder))
        collection = collect_tests(
            resolve_targets(targets), given, pytest_args, Path(folder), shared=Shared(host=host)
        )
    # Stricter than a run: a file that is missing here would be missing in every green shard.
    if collection.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED):
        click.echo(outgoing.text(collection.output), err=True)
        raise UsageError(
            "some tests could not be collected (see above); fix them, since no shard would run them"
        )
    for remark in collection.remarks:
        warn(remark)
    return collection.tests


PoolSize = Callable[[str, str, str], Size]
"""Function from a scheduler, a partition and the device of the run to the size of the partition."""
Collect = Callable[
    [tuple[str, ...], dict[str, str | None], Sequence[str], int, "TargetHost | None"], Sequence[TestCase]
]
"""Function from targets, options, pytest's arguments, the GPUs of the largest runner (0: unknown) and the machine to
collect for to tests."""


def ask_scheduler(scheduler: str, partition: str, device: str) -> Size:
    """Ask a scheduler for the size of a partition."""
    return size_of(scheduler_of(scheduler, partition).capacity(), device)


def plan_command(
    collect: Collect,
    pool_size: PoolSize = ask_scheduler,
) -> click.Command:
    """Make the command, given functions that collect tests and ask schedulers.

    Among the options of runs, ``--slots`` with ``--shards`` sets the number of ranks that a runner runs at a time, and
    ``--device cuda`` states that the runners have GPUs; this machine need not have any.
    """

    @serves(Purpose.DIVIDE)
    @click.command(name="plan", cls=ListingCommand)
    @click.argument("targets", nargs=-1, required=True, metavar="SUITE|PATH…")
    @flags_of("plan")
    @click.pass_obj
    def plan(pytest_args: Sequence[str] | None, /, targets: tuple[str, ...], **given: Any) -> None:
        """Plan tests on runners: each world size on the cheapest pool that holds it, split by time."""
        # Without the environment: DISTTEST_SLOTS is about this machine, not about the runners.
        given["slots_per_runner"] = resolve_options({"slots": given["slots"]}, environ={}).slots
        check_one_way(given)
        asked = {option.field: given.get(option.field) for option in RUN_OPTIONS}
        flags = by_command(read_project_settings(targets).fill(asked))
        options = resolve_options(flags)
        if given["setup"] is not None:
            from disttest.cli.setup_script import run_setup

            # Its failure is exit code 10: neither a test nor a machine is to blame.
            run_setup(given["setup"])
        pools = parse_pools(
            given["pool"],
            given["labels"],
            lambda scheduler, partition: pool_size(scheduler, partition, options.device),
        )
        host = _host_of(pools, options, given["nodes"])
        timings, warnings = read_timings(given["timings"], now_s=_now_s(), hardware=given["hardware"])
        for warning in warnings:
            warn(f"warning: {warning}")
        largest = max((pool.gpus for pool in pools), default=given["slots_per_runner"])
        made = make_plan(collect(targets, flags, pytest_args or (), largest, host), timings, given, pools)
        _write(given["output"], encode_plan(made).decode())
        _print_plan(made, given["output"], given["matrix"])
        if made.last is None and not given["allow_empty"]:
            warn("no tests to plan; pass --allow-empty to accept that")
            click.get_current_context().exit(ExitCode.NOTHING_COLLECTED)

    return plan


def _host_of(pools: Sequence[Pool], options: RunOptions, nodes: int) -> TargetHost | None:
    """Return the machine to collect for if there are pools of schedulers.

    Raises:
        UsageError: ``--nodes`` is given without such a pool.
        NotEnoughDevices: no pool has that many nodes.
    """
    schedulers = [pool for pool in pools if pool.scheduler]
    if not schedulers:
        if nodes > 1:
            raise UsageError("--nodes needs a --pool of a scheduler's nodes, such as big:slurm:gpu")
        return None
    from disttest.runtime.controller.target_host import host_of_nodes

    with_gpus = [pool for pool in schedulers if pool.device != "cpu" and options.device != "cpu"]
    return host_of_nodes(
        # Worlds that fit a runner are collected as well.
        gpus=max(pool.gpus for pool in pools) if with_gpus else 0,
        pool=max(pool.runners for pool in schedulers),
        nodes=nodes,
        options=options,
        scheduler=", ".join(dict.fromkeys(pool.scheduler for pool in schedulers)),
    )


def check_one_way(given: dict[str, Any]) -> None:
    """Refuse options that select no way or two ways of splitting.

    Raises:
        UsageError: not exactly one of --pool, --shards and --by is given, or an option lacks its partner.
    """
    ways = [name for name in ("pool", "shards", "by") if given[name] not in ((), None)]
    if len(ways) != 1:
        raise UsageError(f"give one of --pool {POOL_FORM.split(' or ')[0]}, --shards N and --by world-size")
    if given["slots"] and ways != ["shards"]:
        raise UsageError("--slots needs --shards; a --pool states its own GPUs")
    if given["labels"] and ways != ["pool"]:
        raise UsageError("--labels needs --pool")
    if given["nodes"] > 1 and ways != ["pool"]:
        raise UsageError("--nodes needs a --pool of a scheduler's nodes, such as big:slurm:gpu")


def make_plan(
    tests: Sequence[TestCase], timings: Timings, given: dict[str, Any], pools: Sequence[Pool]
) -> Plan:
    """Make the plan in the selected way."""
    if pools:
        return plan_shards(tests, timings, pools=pools, revision=given["revision"], spread=given["nodes"])
    if given["by"]:
        return plan_by_world_size(tests, timings, revision=given["revision"])
    return plan_equal_shards(
        tests, timings, shards=given["shards"], slots=given["slots_per_runner"], revision=given["revision"]
    )


def render_plan(plan: Plan) -> str:
    """Render one line for each shard."""
    lines = [
        f"{shard.number:>4}  {shard.name:<20} {shard.gpus:>3} GPUs  {len(shard.tests):>6} tests  "
        f"{shard.expected_s:>8.0f} s  {shard.gpu_minutes:>8.1f} GPU-minutes"
        for shard in plan.shards
    ]
    total = sum(shard.gpu_minutes for shard in plan.shards)
    longest_s = max((shard.expected_s for shard in plan.shards), default=0.0)
    tests = sum(len(shard.tests) for shard in plan.shards)
    summary = (
        f"{count(tests, 'test')} in {count(len(plan.shards), 'shard')}: {longest_s:.0f} s, "
        f"{total:.1f} GPU-minutes expected"
    )
    return "\n".join([*lines, summary])


def _print_plan(plan: Plan, output: Path, matrix: Path | None) -> None:
    line = json.dumps(render_matrix(plan), separators=(",", ":"))
    to_stdout = matrix == Path("-")
    # With `--matrix -` standard output has the matrix alone, so that a script can capture it.
    click.echo(f"{render_plan(plan)}\nplan written to {output}", err=to_stdout)
    if to_stdout:
        click.echo(line)
    elif matrix:
        _write(matrix, line + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; choose another place") from error


def _now_s() -> float:
    return time.time()  # noqa: TID251 - compared with the wall clocks of other machines
