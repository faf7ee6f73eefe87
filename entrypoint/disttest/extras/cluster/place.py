"""The nodes of a scheduler as the place of a run."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import click
import msgspec

from disttest.cli.words import warn
from disttest.errors import UsageError
from disttest.extras.cluster.option_rows import ASSIGNED, LAUNCHERS, RUN_OPTIONS
from disttest.model import Frozen
from disttest.options.environment import environment
from disttest.options.values import check_provided
from disttest.planning.backends import GPU
from disttest.safe_open import read_input

if TYPE_CHECKING:
    from disttest.cli.run_request import PreparedRun, RunRequest
    from disttest.extras.cluster.protocol.launcher import Capacity, Launcher
    from disttest.results.fold import RunResult


class Size(Frozen):
    """Size of a scheduler's partition."""

    nodes: int
    gpus: int
    """GPUs of each node; its processors if it has no GPU."""
    device: str = GPU


def choose_nodes(request: RunRequest) -> Nodes | None:
    """Return the nodes that a run asks for, if any.

    Raises:
        UsageError: an option is invalid on nodes.
    """
    asked = {option.field: request.settings[option.field] for option in RUN_OPTIONS}
    nodes = read_nodes(asked, {row.field for row in request.given_settings})
    if nodes is not None:
        _refuse(request)
    return nodes


def read_assigned(request: RunRequest) -> tuple[str, ...] | None:
    """Return the tests that an agent runs on its node; None for any other run.

    Raises:
        UsageError: their file cannot be read.
    """
    path = request.settings[ASSIGNED.field]
    return msgspec.json.decode(read_input(path), type=tuple[str, ...]) if path else None


def _refuse(request: RunRequest) -> None:
    options = request.options
    if request.setup is not None:
        raise UsageError("--setup works on one machine only; prepare the nodes of a scheduler before the run")
    if check_provided(options.device):
        raise UsageError(f"--device {options.device} is a device of this machine only; leave out --launcher")


def read_nodes(given: Mapping[str, Any], named: Collection[str]) -> Nodes | None:
    """Check the options and return the nodes.

    Args:
        given: values by field.
        named: fields set by the command line, a variable or a plan, perhaps to their default.

    Raises:
        UsageError: an option is invalid, or has no effect without --launcher.
    """
    if not given["launcher"] and given["nodes"] > 1:
        raise UsageError(
            f"--nodes {given['nodes']} needs a scheduler; give --launcher {' or '.join(LAUNCHERS)}"
        )
    parse_ports(given["ports"])
    for name in ("container", "mount"):
        if given[name] and not given["image"]:
            raise UsageError(f"--{name} needs an --image; give one")
    return Nodes(given, named) if given["launcher"] else None


def parse_ports(text: str) -> tuple[int, int]:
    """Parse ``29500-29510``; empty for any port.

    Raises:
        UsageError: the text is not a range of ports.
    """
    if not text:
        return 0, 0
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < first <= last < 65536:
        raise UsageError(f"--ports {text!r} is not a range of ports such as 29500-29510")
    return first, last


class Nodes:
    """A scheduler and the options for it.

    Args:
        given: checked options by field.
        named: fields set by the command line or the plan, perhaps to their default.
    """

    option = "--launcher"

    def __init__(self, given: Mapping[str, Any], named: Collection[str]) -> None:
        self.given, self._named = given, named

    def record(self) -> Mapping[str, str]:
        """Return the options as given; values of an option with several are separated by newlines."""
        chosen = {
            option.name: "\n".join(self.given[option.field]) if option.many else str(self.given[option.field])
            for option in RUN_OPTIONS
            if option.field in self._named
        }
        return {"launcher": self.given["launcher"], **chosen}

    def run(self, prepared: PreparedRun) -> RunResult:
        """Run all tests as jobs of the scheduler; no job is left afterwards."""
        from disttest.cli.progress_mode import shows_output
        from disttest.extras.cluster.client.cluster_session import ClusterRequest, run_on_cluster
        from disttest.extras.cluster.client.conductor import JobLimits
        from disttest.results.durations import read_timings

        given = self.given
        known, warnings = read_timings(list(prepared.timings), now_s=time.time(), hardware="")  # noqa: TID251
        for warning in warnings:
            warn(f"warning: {warning}")
        request = ClusterRequest(
            targets=prepared.targets,
            flags=prepared.flags,
            pytest_arguments=tuple(prepared.pytest_args),
            live_output=shows_output(prepared.pytest_args),
            # These data refer to files of this machine. They are applied here, and the nodes get a list of tests.
            data=dict(prepared.data),
            failed_first=prepared.failed_first,
            invocation=prepared.invocation,
            part=prepared.part,
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
        return run_on_cluster(
            request,
            prepared.options,
            _launcher(given),
            prepared.directory,
            timings=known,
            signals=prepared.signals,
            tell=_print,
        )


def _launcher(given: Mapping[str, Any]) -> Launcher:
    """Make the launcher of the scheduler.

    Raises:
        UsageError: ``--scheduler-args`` cannot be parsed.
    """
    from disttest.extras.cluster.protocol.launcher import LauncherOptions
    from disttest.extras.cluster.schedulers import scheduler_named

    try:
        extra = tuple(shlex.split(given["scheduler_args"]))
    except ValueError as error:
        raise UsageError(f"--scheduler-args: {error}") from None
    options = LauncherOptions(
        nodes=given["nodes"],
        command=tuple(shlex.split(given["node_command"])),
        partition=given["partition"],
        pod_nodes=given["pod_nodes"],
        account=given["account"],
        extra=extra,
        container=(given["container"] or "pyxis") if given["image"] else "",
        mounts=tuple(given["mount"]),
        pod_template=str(given["pod_template"] or ""),
        job_objects=str(given["job_objects"] or ""),
        priority_class=given["priority_class"],
        gpu_resource=given["gpu_resource"],
    )
    return scheduler_named(given["launcher"]).make_launcher(environment(), options)


def scheduler_of(name: str, partition: str) -> Launcher:
    """Make a launcher to query the capacity of a partition."""
    from disttest.extras.cluster.protocol.launcher import LauncherOptions
    from disttest.extras.cluster.schedulers import scheduler_named

    return scheduler_named(name).make_launcher(environment(), LauncherOptions(partition=partition))


def size_of(capacity: Capacity, device: str) -> Size:
    """Convert a capacity for plans: ranks run on GPUs if nodes have any, unless the device is the CPU."""
    if capacity.gpus_per_node and device != "cpu":
        return Size(nodes=capacity.nodes, gpus=capacity.gpus_per_node)
    return Size(nodes=capacity.nodes, gpus=capacity.cpus_per_node, device="cpu")


def _print(text: str) -> None:
    click.echo(text, color=False if environment().get("NO_COLOR") else None)
