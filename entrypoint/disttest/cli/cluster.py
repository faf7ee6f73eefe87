"""``disttest run --launcher …``, ``disttest node-agent`` and ``disttest cluster-clean``: the doors to clusters."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from disttest.cli.words import warn
from disttest.errors import DisttestError, UsageError
from disttest.model import Frozen, Invocation
from disttest.options.environment import environment
from disttest.options.flags import RegistryCommand, flags, was_given
from disttest.options.registry import CLUSTER_OPTIONS, LAUNCHERS
from disttest.options.run import RunOptions
from disttest.planning.pools import Pool, Size
from disttest.planning.shard_plan import Grant

if TYPE_CHECKING:
    from disttest.cli.selection import RunSelection
    from disttest.cluster.protocol.launcher import Capacity, Launcher
    from disttest.host.signals import NotedSignals
    from disttest.results.directory import ResultsDirectory
    from disttest.results.fold import RunResult

LauncherFor = Callable[[str, str], "Launcher"]
"""Scheduler and partition in, the door to it out."""


class ClusterChoice(Frozen):
    """The options, checked; ``launcher`` is empty for a run on this machine."""

    launcher: str
    given: dict[str, Any]
    named: frozenset[str] = frozenset()
    """Fields that the command line or the plan has set, perhaps to their default."""

    def record(self) -> dict[str, str]:
        """Option -> value for the record of the run, as far as they were given; of several one a line."""
        if not self.launcher:
            return {}
        chosen = {
            option.name: "\n".join(self.given[option.field]) if option.many else str(self.given[option.field])
            for option in CLUSTER_OPTIONS
            if option.field in self.named
        }
        return {"launcher": self.launcher, **chosen}


def take_cluster(given: dict[str, Any], grant: Grant | None = None) -> ClusterChoice:
    """Take the options out of what click gave; a shard of a plan brings its own scheduler, partition and spread.

    Raises:
        UsageError: one makes no sense, contradicts the plan, or none but --launcher would have an effect.
    """
    launcher = given.pop("launcher")
    own = [option for option in CLUSTER_OPTIONS if option.name != "launcher"]
    taken = {option.field: given.pop(option.field) for option in own}
    named = {option.field for option in own if was_given(option)}
    if grant is not None:
        launcher = launcher or grant.scheduler
        granted = _granted(taken, grant, asked="nodes" in named)
        taken |= granted
        named |= granted.keys()
    if not launcher and taken["nodes"] > 1:
        raise UsageError(
            f"--nodes {taken['nodes']} needs a scheduler: give --launcher {' or '.join(LAUNCHERS)}"
        )
    parse_ports(taken["ports"])
    for name in ("container", "mount"):
        if taken[name] and not taken["image"]:
            raise UsageError(f"--{name} is for an --image, and none is given")
    return ClusterChoice(launcher=launcher, given=taken, named=frozenset(named))


def _granted(taken: Mapping[str, Any], grant: Grant, *, asked: bool) -> dict[str, Any]:
    if asked and taken["nodes"] != grant.spread:
        raise UsageError(
            f"--nodes {taken['nodes']}: the plan was made with --nodes {grant.spread}, and its tests are named for that"
        )
    # A shard is one allocation; it is not divided again.
    return {"nodes": grant.spread, "partition": taken["partition"] or grant.partition, "jobs": 1}


def parse_ports(text: str) -> tuple[int, int]:
    """``29500-29510``; empty: any port.

    Raises:
        UsageError: that is no range of ports.
    """
    if not text:
        return 0, 0
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < first <= last < 65536:
        raise UsageError(f"--ports {text!r} is no range of ports such as 29500-29510")
    return first, last


def make_launcher(name: str, given: Mapping[str, Any]) -> Launcher:
    """The scheduler by its name.

    Raises:
        UsageError: ``--scheduler-args`` cannot be read.
    """
    from disttest.cluster.protocol.launcher import LauncherOptions
    from disttest.cluster.schedulers import scheduler_named

    try:
        extra = tuple(shlex.split(given["scheduler_args"]))
    except ValueError as error:
        raise UsageError(f"--scheduler-args: {error}") from None
    options = LauncherOptions(
        nodes=given["nodes"],
        command=tuple(shlex.split(given["node_command"])),
        partition=given["partition"],
        account=given["account"],
        extra=extra,
        container=(given["container"] or "pyxis") if given["image"] else "",
        mounts=tuple(given["mount"]),
        pod_template=str(given["pod_template"] or ""),
        gpu_resource=given["gpu_resource"],
    )
    return scheduler_named(name).make_launcher(environment(), options)


def scheduler_launcher(scheduler: str, partition: str) -> Launcher:
    """The door to a partition of a scheduler, to ask what it has."""
    from disttest.cluster.protocol.launcher import LauncherOptions
    from disttest.cluster.schedulers import scheduler_named

    return scheduler_named(scheduler).make_launcher(environment(), LauncherOptions(partition=partition))


def size_of(capacity: Capacity, device: str) -> Size:
    """What a plan needs to know of a scheduler's nodes: where they have GPUs, ranks compute there unless told otherwise."""
    if capacity.gpus_per_node and device != "cpu":
        return Size(nodes=capacity.nodes, gpus=capacity.gpus_per_node)
    return Size(nodes=capacity.nodes, gpus=capacity.cpus_per_node, device="cpu")


def collecting_for(pools: Sequence[Pool], options: RunOptions, nodes: int) -> list[str]:
    """Arguments for pytest that have it collect for the pools of schedulers, and not for this machine; none without any.

    Raises:
        UsageError: ``--nodes`` without such a pool.
        NotEnoughDevices: none of them has so many nodes.
    """
    schedulers = [pool for pool in pools if pool.scheduler]
    if not schedulers:
        if nodes > 1:
            raise UsageError("--nodes goes with a --pool of a scheduler's nodes, such as big:slurm:gpu")
        return []
    from disttest.cluster.client.cluster_session import check_nodes, host_argument, host_of
    from disttest.cluster.protocol.launcher import Capacity

    with_gpus = [pool for pool in schedulers if pool.device != "cpu" and options.device != "cpu"]
    capacity = Capacity(
        nodes=max(pool.runners for pool in schedulers),
        # A world that fits a runner is collected, too.
        gpus_per_node=max((pool.gpus for pool in pools), default=0) if with_gpus else 0,
        cpus_per_node=max(pool.gpus for pool in schedulers),
        scheduler=", ".join(dict.fromkeys(pool.scheduler for pool in schedulers)),
    )
    check_nodes(nodes, capacity)
    return [host_argument(host_of(capacity, options, nodes))]


def run_cluster(
    choice: ClusterChoice,
    targets: Sequence[str],
    flags: dict[str, str],
    options: RunOptions,
    pytest_arguments: Sequence[str],
    directory: ResultsDirectory,
    selection: RunSelection,
    invocation: Invocation,
    signals: NotedSignals,
) -> RunResult:
    """Run on the chosen scheduler; returns the folded result."""
    from disttest.cli.progress_mode import shows_output
    from disttest.cluster.client.cluster_session import ClusterRequest, run_on_cluster
    from disttest.cluster.client.conductor import JobLimits
    from disttest.results.durations import read_timings

    given = choice.given
    known, warnings = read_timings(list(selection.timings), now_s=time.time(), hardware="")  # noqa: TID251
    for warning in warnings:
        warn(f"warning: {warning}")
    request = ClusterRequest(
        targets=tuple(targets),
        flags=flags,
        pytest_arguments=tuple(pytest_arguments),
        live_output=shows_output(pytest_arguments),
        # Files of this machine: what they select is settled here, and travels as a list of tests.
        collection_arguments=tuple(selection.pytest_arguments()),
        failed_first=selection.failed_first,
        invocation=invocation,
        plan_id=selection.plan.plan_id if selection.plan else "",
        shard=selection.shard if selection.plan else None,
        nodes=given["nodes"],
        jobs=given["jobs"],
        gpus_per_node=given["gpus_per_node"],
        job_limit_s=given["job_limit"],
        limits=JobLimits(queue_s=given["queue_limit"], silence_s=given["silence_limit"]),
        environment=tuple(given["pass_env"]),
        image=given["image"],
        directory=given["node_dir"],
        shared_dir=given["shared_dir"],
        ports=parse_ports(given["ports"]),
    )
    launcher = make_launcher(choice.launcher, given)
    return run_on_cluster(request, options, launcher, directory, timings=known, signals=signals, tell=_tell)


def _tell(text: str) -> None:
    click.echo(text, color=False if environment().get("NO_COLOR") else None)


@click.command(name="node-agent", hidden=True)
def node_agent() -> None:
    """Be the agent of one node of a job (started by a scheduler, never by hand)."""
    from disttest.cluster.node.agent import Agent, own_output
    from disttest.cluster.node.assignment import find_assignment

    own_output()
    Agent(find_assignment(environment())).run()


@click.command(name="cluster-clean", cls=RegistryCommand)
@flags("cluster-clean")
def cluster_clean(*, launcher: str, partition: str, **given: bool) -> None:
    """End the jobs that a killed run of this machine has left with a scheduler."""
    from disttest.cluster.client.cluster_session import remove_leftovers

    scheduler, every = scheduler_launcher(launcher, partition), given["all"]
    try:
        names = scheduler.every_name() if every else ()
    except DisttestError as error:
        raise UsageError(str(error)) from error
    if every:
        scheduler.remove(names)
    else:
        names = remove_leftovers(scheduler)
    for name in names:
        click.echo(f"cancelled {name}")
