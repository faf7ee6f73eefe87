"""Options of runs on a cluster."""

from __future__ import annotations

from functools import partial

from disttest.extras.cluster.schedulers import SCHEDULERS
from disttest.options.option import rows_of
from disttest.options.values import COUNT, SECONDS, SWITCH, WHOLE, one_of, path, text

LAUNCHERS = ("local", *SCHEDULERS)

_for_nodes = partial(rows_of("run"), for_command=True, in_file=False, elsewhere=True, title="Clusters")
_setting = partial(rows_of("run"), for_command=True, has_variable=True, no_flag=True, inputs=())

ASSIGNED = rows_of("run")(
    "assigned",
    path("FILE"),
    "File with the tests of a job, written by the agent of a node.",
    for_command=True,
    in_file=False,
    hidden=True,
    inputs=(),
)
QUEUE_LIMIT = _for_nodes("queue-limit", SECONDS, "Maximum queue time of a job.", default=3600.0)
SILENCE_LIMIT = _setting("silence-limit", SECONDS, "Silence after which a node counts as lost.", default=30.0)
RUN_OPTIONS = (
    _for_nodes(
        "launcher",
        one_of(*LAUNCHERS),
        "Run on the nodes of a scheduler in place of this machine.",
        default="",
        has_variable=True,
        repeated=True,
    ),
    _for_nodes("nodes", COUNT, "Nodes of each world whose mark gives no number.", default=1, repeated=True),
    _for_nodes(
        "partition",
        text("NAME"),
        "Slurm's partition; for Kubernetes NAMESPACE or CONTEXT/NAMESPACE.",
        default="",
        repeated=True,
    ),
    _for_nodes(
        "account",
        text("NAME"),
        "Slurm's account; for Kubernetes a queue of Kueue.",
        default="",
        repeated=True,
    ),
    _for_nodes(
        "scheduler-args",
        text("ARGS"),
        "Further arguments for srun, such as --qos=ci --mem=64G, or for kubectl, quoted as in a shell.",
        default="",
        repeated=True,
    ),
    _setting(
        "jobs",
        WHOLE,
        "Most jobs with the scheduler at a time.",
        default=0,
        otherwise="one for each node, 16 to 128",
    ),
    _for_nodes(
        "gpus-per-node",
        WHOLE,
        "GPUs that a job holds on each node.",
        default=0,
        otherwise="one for each rank",
        repeated=True,
    ),
    _for_nodes(
        "job-limit",
        SECONDS,
        "Wall time of a job.",
        default=0.0,
        otherwise="from the tests' limits, at most the partition's",
    ),
    QUEUE_LIMIT,
    SILENCE_LIMIT,
    _for_nodes("image", text("IMAGE"), "Container image for the nodes.", default="", repeated=True),
    _for_nodes(
        "container",
        one_of("pyxis", "docker"),
        "How nodes run the image.",
        default="",
        otherwise="pyxis",
        repeated=True,
    ),
    _for_nodes(
        "mount", text("PATH[:PATH]"), "Path of the node to mount in its container.", many=True, repeated=True
    ),
    _for_nodes(
        "pod-template",
        path("FILE"),
        "Template for the pods of Kubernetes: a YAML file.",
        repeated=True,
    ),
    _for_nodes(
        "job-objects",
        path("FILE"),
        "Further Kubernetes objects of each job, such as a NetworkPolicy: a YAML file.",
        repeated=True,
    ),
    _for_nodes(
        "priority-class", text("NAME"), "Kubernetes' priority class of the pods.", default="", repeated=True
    ),
    _setting(
        "gpu-resource",
        text("NAME"),
        "Kubernetes' name of a GPU.",
        default="",
        otherwise="nvidia.com/gpu",
    ),
    _setting(
        "pod-nodes",
        text("NODESxGPUS[xCPUS]"),
        "Nodes that Kubernetes has or starts on demand; they are not looked up.",
        default="",
    ),
    _for_nodes("pass-env", text("NAME"), "Further variable to pass to the nodes.", many=True, repeated=True),
    _for_nodes(
        "node-dir",
        text("DIR"),
        "Working directory on the nodes.",
        default="",
        otherwise="as here",
        repeated=True,
    ),
    _for_nodes("shared-dir", text("DIR"), "A directory that all nodes see.", default="", repeated=True),
    _for_nodes(
        "ports",
        text("FIRST-LAST"),
        "Ports for the rendezvous, if a firewall permits only some.",
        default="",
        repeated=True,
    ),
    _setting("node-command", text("COMMAND"), "Command of the node agent on the nodes.", default=""),
)
"""Options of ``disttest run``."""

OPTIONS = (
    *RUN_OPTIONS,
    ASSIGNED,
    rows_of("cluster-clean")(
        "launcher",
        one_of(*LAUNCHERS),
        "The scheduler.",
        default="slurm",
        has_variable=True,
    ),
    rows_of("cluster-clean")(
        "partition",
        text("NAME"),
        "For Kubernetes NAMESPACE or CONTEXT/NAMESPACE; Slurm needs none.",
        default="",
        has_variable=True,
    ),
    rows_of("cluster-clean")(
        "all",
        SWITCH,
        "End the jobs of living clients and of other machines, too; for Kubernetes those of all users.",
        default=False,
    ),
)
