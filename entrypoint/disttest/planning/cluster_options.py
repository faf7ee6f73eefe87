"""Every option of a run on a cluster, declared once: the command's flags, the action's inputs and the docs are made of it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from disttest.planning.pools import ENGINES

LAUNCHERS = ("local", *ENGINES)
CONTAINERS = ("pyxis", "docker")


class Takes(StrEnum):
    """What an option takes."""

    TEXT = "text"
    COUNT = "count"
    """A whole number from 1."""
    WHOLE = "whole"
    """A whole number from 0."""
    SECONDS = "seconds"
    MANY = "many"
    """Text, as often as it is given."""


class ClusterOption(NamedTuple):
    """One row of the table."""

    name: str
    metavar: str
    help: str
    takes: Takes = Takes.TEXT
    default: str | float = ""
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """Its name as an argument."""
        return self.name.replace("-", "_")


CLUSTER_OPTIONS = (
    ClusterOption(
        "launcher",
        "|".join(LAUNCHERS),
        "Run on an engine that schedules, instead of on this machine.",
        choices=LAUNCHERS,
    ),
    ClusterOption(
        "nodes", "N", "Nodes of each world that does not say so itself (default: 1).", Takes.COUNT, 1
    ),
    ClusterOption("partition", "NAME", "Slurm's partition."),
    ClusterOption("account", "NAME", "Slurm's account."),
    ClusterOption(
        "engine-args", "ARGS", "More arguments for srun, quoted as in a shell, such as --qos=ci --mem=64G."
    ),
    ClusterOption(
        "jobs", "N", "Jobs with the engine at once (default: one for each node, 16 to 128).", Takes.WHOLE, 0
    ),
    ClusterOption(
        "gpus-per-node",
        "N",
        "GPUs that a job holds on each node (default: one for each rank).",
        Takes.WHOLE,
        0,
    ),
    ClusterOption(
        "job-limit",
        "SECONDS",
        "Wall time of a job (default: from the tests' limits, at most the partition's).",
        Takes.SECONDS,
        0.0,
    ),
    ClusterOption(
        "queue-limit", "SECONDS", "Patience in the engine's queue (default: 3600).", Takes.SECONDS, 3600.0
    ),
    ClusterOption(
        "silence-limit",
        "SECONDS",
        "A node that is silent for so long is lost (default: 30).",
        Takes.SECONDS,
        30.0,
    ),
    ClusterOption("image", "IMAGE", "Container image for the nodes."),
    ClusterOption(
        "container", "|".join(CONTAINERS), "How nodes run the image (default: pyxis).", choices=CONTAINERS
    ),
    ClusterOption("mount", "PATH[:PATH]", "What a node's container sees of the node.", Takes.MANY),
    ClusterOption("pass-env", "NAME", "One more variable that travels to the nodes.", Takes.MANY),
    ClusterOption("node-dir", "DIR", "Working directory on the nodes (default: as here)."),
    ClusterOption("shared-dir", "DIR", "A directory that all nodes see."),
    ClusterOption(
        "ports", "FIRST-LAST", "Ports that the rendezvous may use, where a firewall lets few through."
    ),
    ClusterOption("node-command", "COMMAND", "How nodes call disttest node-agent."),
)
