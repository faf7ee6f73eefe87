"""``disttest run --launcher …``, ``disttest node-agent`` and ``disttest cluster-clean``: the doors to clusters."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disttest.errors import DisttestError, UsageError
from disttest.model import Frozen, Invocation
from disttest.planning.cluster_options import CLUSTER_OPTIONS, LAUNCHERS, ClusterOption, Takes
from disttest.planning.options import RunOptions, environment
from disttest.planning.plan import Grant
from disttest.planning.pools import ENGINES, Pool, Size

if TYPE_CHECKING:
    from disttest.cluster.launcher import Capacity, Launcher
    from disttest.commands.selection import Selection
    from disttest.results.fold import RunResult

LAUNCHER_VARIABLE = "DISTTEST_LAUNCHER"

LauncherFor = Callable[[str, str], "Launcher"]
"""Engine and partition in, the door to it out."""


class ClusterChoice(Frozen):
    """The options, checked; ``launcher`` is empty for a run on this machine."""

    launcher: str
    given: dict[str, Any]

    def record(self) -> dict[str, str]:
        """Option -> value for the record of the run, as far as they were given; of several one a line."""
        if not self.launcher:
            return {}
        chosen = {
            option.name: "\n".join(value) if option.takes is Takes.MANY else str(value)
            for option in CLUSTER_OPTIONS
            if option.name != "launcher" and (value := self.given[option.field]) and value != option.default
        }
        return {"launcher": self.launcher, **chosen}


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options."""
    for option in reversed(CLUSTER_OPTIONS):
        function = _click_option(option)(function)
    return function


def _click_option(option: ClusterOption) -> Callable[..., Any]:
    kinds: dict[Takes, dict[str, Any]] = {
        Takes.COUNT: {"type": click.IntRange(1)},
        Takes.WHOLE: {"type": click.IntRange(0)},
        Takes.SECONDS: {"type": click.FloatRange(0)},
        Takes.MANY: {"multiple": True},
    }
    given = {"default": option.default, "metavar": option.metavar} | kinds.get(option.takes, {})
    if option.takes is Takes.MANY:
        del given["default"]
    if option.choices:
        given = {"type": click.Choice(option.choices)}
    if option.name == "launcher":
        given["envvar"] = LAUNCHER_VARIABLE
    return click.option(f"--{option.name}", help=option.help, **given)


def take_cluster(given: dict[str, Any], grant: Grant | None = None) -> ClusterChoice:
    """Take the options out of what click gave; a shard of a plan brings its own engine, partition and spread.

    Raises:
        UsageError: one makes no sense, contradicts the plan, or none but --launcher would have an effect.
    """
    launcher = given.pop("launcher") or ""
    taken = {option.field: given.pop(option.field) for option in CLUSTER_OPTIONS if option.name != "launcher"}
    if grant is not None:
        launcher = launcher or grant.engine
        taken |= _granted(taken, grant)
    if not launcher and taken["nodes"] > 1:
        raise UsageError(
            f"--nodes {taken['nodes']} needs an engine: give --launcher {' or '.join(LAUNCHERS)}"
        )
    parse_ports(taken["ports"])
    for name in ("container", "mount"):
        if taken[name] and not taken["image"]:
            raise UsageError(f"--{name} is for an --image, and none is given")
    return ClusterChoice(launcher=launcher, given=taken)


def _granted(taken: Mapping[str, Any], grant: Grant) -> dict[str, Any]:
    if taken["nodes"] not in (1, grant.spread):
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
    """The engine by its name.

    Raises:
        UsageError: ``--engine-args`` can not be read.
    """
    command = shlex.split(given["node_command"])
    if name == "local":
        from disttest.cluster.local import LocalLauncher

        return LocalLauncher(environment(), nodes=max(2, given["nodes"]), command=command)
    from disttest.cluster.slurm import SlurmLauncher
    from disttest.cluster.slurm_submission import SlurmOptions

    try:
        extra = tuple(shlex.split(given["engine_args"]))
    except ValueError as error:
        raise UsageError(f"--engine-args: {error}") from None
    options = SlurmOptions(
        partition=given["partition"],
        account=given["account"],
        extra=extra,
        container=(given["container"] or "pyxis") if given["image"] else "",
        mounts=tuple(given["mount"]),
    )
    return SlurmLauncher(environment(), options, command=command)


def engine_launcher(engine: str, partition: str) -> Launcher:
    """The door to a partition of an engine, to ask what it has."""
    assert engine in ENGINES
    from disttest.cluster.slurm import SlurmLauncher
    from disttest.cluster.slurm_submission import SlurmOptions

    return SlurmLauncher(environment(), SlurmOptions(partition=partition))


def size_of(capacity: Capacity, device: str) -> Size:
    """What a plan needs to know of an engine's nodes: where they have GPUs, ranks compute there unless told otherwise."""
    if capacity.gpus_per_node and device != "cpu":
        return Size(nodes=capacity.nodes, gpus=capacity.gpus_per_node)
    return Size(nodes=capacity.nodes, gpus=capacity.cpus_per_node, device="cpu")


def collecting_for(pools: Sequence[Pool], options: RunOptions, nodes: int) -> list[str]:
    """Arguments for pytest that have it collect for the pools of engines, and not for this machine; none without any.

    Raises:
        UsageError: ``--nodes`` without such a pool.
        NotEnoughDevices: none of them has so many nodes.
    """
    engines = [pool for pool in pools if pool.engine]
    if not engines:
        if nodes > 1:
            raise UsageError("--nodes goes with a --pool that an engine has, such as big:slurm:gpu")
        return []
    from disttest.cluster.launcher import Capacity
    from disttest.cluster.session import check_nodes, host_argument, host_of

    with_gpus = [pool for pool in engines if pool.device != "cpu" and options.device != "cpu"]
    capacity = Capacity(
        nodes=max(pool.runners for pool in engines),
        # A world that fits a runner is collected, too.
        gpus_per_node=max((pool.gpus for pool in pools), default=0) if with_gpus else 0,
        cpus_per_node=max(pool.gpus for pool in engines),
        engine=", ".join(dict.fromkeys(pool.engine for pool in engines)),
    )
    check_nodes(nodes, capacity)
    return [host_argument(host_of(capacity, options, nodes))]


def run_cluster(
    choice: ClusterChoice,
    targets: Sequence[str],
    flags: dict[str, str],
    options: RunOptions,
    pytest_arguments: Sequence[str],
    results: Path,
    selection: Selection,
    invocation: Invocation,
) -> RunResult:
    """Run on the chosen engine; returns the folded result."""
    from disttest.cluster.conductor import Limits
    from disttest.cluster.session import ClusterRequest, run_on_cluster
    from disttest.results.durations import read_timings

    given = choice.given
    known, warnings = read_timings(list(selection.timings), now_s=time.time(), hardware="")  # noqa: TID251
    for warning in warnings:
        click.echo(f"disttest: warning: {warning}", err=True)
    request = ClusterRequest(
        targets=tuple(targets),
        flags=flags,
        pytest_arguments=tuple(pytest_arguments),
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
        limits=Limits(queue_s=given["queue_limit"], silence_s=given["silence_limit"]),
        environment=tuple(given["pass_env"]),
        image=given["image"],
        directory=given["node_dir"],
        shared_dir=given["shared_dir"],
        ports=parse_ports(given["ports"]),
    )
    launcher = make_launcher(choice.launcher, given)
    return run_on_cluster(request, options, launcher, results, timings=known, tell=click.echo)


@click.command(name="node-agent", hidden=True)
def node_agent() -> None:
    """Be the agent of one node of a job (started by an engine, never by hand)."""
    from disttest.cluster.agent import Agent, own_output
    from disttest.cluster.place import find_place

    own_output()
    Agent(find_place(environment())).run()


@click.command(name="cluster-clean")
@click.option("--launcher", type=click.Choice(LAUNCHERS), default="slurm", envvar=LAUNCHER_VARIABLE)
@click.option("--all", "every", is_flag=True, help="Those of living clients, and of other machines, too.")
def cluster_clean(*, launcher: str, every: bool) -> None:
    """End the jobs that a killed run of this machine has left with an engine."""
    from disttest.cluster.session import remove_leftovers
    from disttest.cluster.slurm import SlurmLauncher

    if launcher != "slurm":
        return
    engine = SlurmLauncher(environment())
    try:
        names = engine.every_name() if every else ()
    except DisttestError as error:
        raise UsageError(str(error)) from error
    if every:
        engine.remove(names)
    else:
        names = remove_leftovers(engine)
    for name in names:
        click.echo(f"cancelled {name}")
