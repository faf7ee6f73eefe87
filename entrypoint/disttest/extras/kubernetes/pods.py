"""Manifests of a job's pods and of the object that owns them. Pure functions.

``kubectl patch --local`` merges disttest's fields over the user's template by Kubernetes' own rules: containers,
volumes and variables by name. This module therefore reads no YAML.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from disttest.errors import SchedulerError, UsageError
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.launcher import Capacity, LauncherOptions
from disttest.extras.kubernetes.limits import KUBERNETES_GRACE_S
from disttest.extras.kubernetes.objects import Node, Taint, WantedPod
from disttest.extras.kubernetes.words import CONTAINER, amount_of

GPU_RESOURCE = "nvidia.com/gpu"
MANAGED_BY = {"app.kubernetes.io/managed-by": "disttest"}
JOB, CLIENT, NODE = "disttest-job", "disttest-client", "disttest-node"
"""Labels: name of the job, name of the client, and number of the node in its job."""

NAME_OF_JOB = "DISTTEST_JOB"
"""Text in a user's file that is replaced by the name of the job."""

Manifest = dict[str, Any]

_LAST_WORD = "/dev/termination-log"
_AGENT = ("disttest", "node-agent")
_SHM = "disttest-shm"


# One ConfigMap for each job, not for the run: the end of a run cannot forget one, and a later client finds the jobs of
# dead clients by name.
def owner_manifest(job: JobSpec, client: str) -> Manifest:
    """Make the owner, whose deletion by any client ends the job."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job.name, "labels": {**MANAGED_BY, JOB: job.name, CLIENT: client}},
    }


def named_for(job: JobSpec, pod: Manifest) -> Manifest:
    """Put the name of the job into a pod, whose template may refer to the job's further objects."""
    named: Manifest = json.loads(json.dumps(pod).replace(NAME_OF_JOB, job.name))
    return named


def objects_of(printed: str, job: JobSpec) -> list[Manifest]:
    """Read the further objects of a job, which kubectl prints one after another.

    Raises:
        SchedulerError: an object has the same name in all jobs.
    """
    text = printed.replace(NAME_OF_JOB, job.name).strip()
    objects: list[Manifest] = []
    # kubectl prints one JSON document after another for a local patch, and no list.
    while text:
        made, end = json.JSONDecoder().raw_decode(text)
        name = made["metadata"].get("name", "")
        if job.name not in name:
            raise SchedulerError(
                f"--job-objects: {made['kind']} {name!r} has one name for all jobs; put {NAME_OF_JOB} into it"
            )
        objects.append(made)
        text = text[end:].lstrip()
    return objects


def pod_patch(job: JobSpec, options: LauncherOptions, client: str) -> Manifest:
    """Make the fields that all pods of a job share, and that override a template."""
    shape = job.shape
    container: Manifest = {
        "name": CONTAINER,
        "command": list(options.command or _AGENT),
        # The agent is the main process of the container, and is reached by attach. When its stream breaks, its input
        # ends, and so does the pod. With exec a process would outlive the client, and the client would need the right
        # to run anything in pods.
        # An attached client misses earlier output, so the agent prints nothing until it has read its first line:
        # https://github.com/kubernetes/kubernetes/issues/27264
        "stdin": True,
        "stdinOnce": True,
        # https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
        "terminationMessagePath": _LAST_WORD,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            {"name": "DISTTEST_PODS", "value": str(shape.nodes)},
            {"name": "DISTTEST_POD_GPUS", "value": str(shape.gpus_per_node)},
            {"name": "DISTTEST_POD_LAST_WORD", "value": _LAST_WORD},
            {"name": "DISTTEST_POD_HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "DISTTEST_POD_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "volumeMounts": [{"name": _SHM, "mountPath": "/dev/shm"}],  # noqa: S108  # of the pod alone
    }
    if job.image:
        container["image"] = job.image
    if shape.gpus_per_node:
        resource = options.gpu_resource or GPU_RESOURCE
        container["resources"] = {"limits": {resource: str(shape.gpus_per_node)}}
    else:
        # Otherwise NVIDIA's runtime shows all GPUs of the node to an image with this variable, granted or not:
        # https://github.com/NVIDIA/k8s-device-plugin/issues/61
        container["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"})
    labels, annotations = _queue(job, options)
    return {
        "metadata": {
            "labels": {**MANAGED_BY, JOB: job.name, CLIENT: client, **labels},
            "annotations": annotations,
        },
        "spec": {
            # A restarted agent would have lost its job; the client decides about retries.
            "restartPolicy": "Never",
            # The cluster ends the pod even if the client is gone.
            "activeDeadlineSeconds": math.ceil(job.limit_s),
            "terminationGracePeriodSeconds": KUBERNETES_GRACE_S,
            **({"priorityClassName": options.priority_class} if options.priority_class else {}),
            "containers": [container],
            # /dev/shm of a container has 64 MiB otherwise, too little for NCCL.
            "volumes": [{"name": _SHM, "emptyDir": {"medium": "Memory"}}],
        },
    }


def _queue(job: JobSpec, options: LauncherOptions) -> tuple[dict[str, str], dict[str, str]]:
    """Make the labels and annotations by which Kueue admits the pods of a job together."""
    if not options.account:
        return {}, {}
    labels = {"kueue.x-k8s.io/queue-name": options.account}
    if job.shape.nodes == 1:
        return labels, {}
    group = {"kueue.x-k8s.io/pod-group-name": job.name}
    return {**labels, **group}, {"kueue.x-k8s.io/pod-group-total-count": str(job.shape.nodes)}


def complete_pod(merged: Manifest, job: JobSpec) -> Manifest:
    """Complete the merged pod with defaults that a template may override.

    Raises:
        SchedulerError: no image is given.
    """
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(merged)}
    spec = pod["spec"]
    # Tests get no access to the cluster unless the template grants it.
    spec.setdefault("automountServiceAccountToken", False)
    # Otherwise pods get variables of each service in the namespace, such as REDIS_PORT, which tests may read.
    spec.setdefault("enableServiceLinks", False)
    container = next(each for each in spec["containers"] if each["name"] == CONTAINER)
    if not container.get("image"):
        raise SchedulerError(
            "--launcher kubernetes needs an image with disttest and torch; give --image, or name one in the "
            f"container {CONTAINER!r} of --pod-template"
        )
    resources = container.setdefault("resources", {})
    if "cpu" not in {**resources.get("limits", {}), **resources.get("requests", {})}:
        resources["requests"] = {**resources.get("requests", {}), "cpu": str(job.shape.ranks_per_node)}
    if job.shape.nodes > 1:
        anti = spec.setdefault("affinity", {}).setdefault("podAntiAffinity", {})
        apart = {"labelSelector": {"matchLabels": {JOB: job.name}}, "topologyKey": "kubernetes.io/hostname"}
        anti.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(apart)
    return pod


def pod_manifests(pod: Manifest, names: Sequence[str], owner: str, owner_uid: str) -> Manifest:
    """Make a list of pods, one for each node, with one owner."""
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [owned(_pod_of_node(pod, node, name), owner, owner_uid) for node, name in enumerate(names)],
    }


def owned(made: Manifest, owner: str, uid: str) -> Manifest:
    """Give an object to the owner of the job: Kubernetes deletes it when the owner is gone."""
    # https://kubernetes.io/docs/concepts/architecture/garbage-collection/#owners-dependents
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}


def _pod_of_node(pod: Manifest, node: int, name: str) -> Manifest:
    # The pods of a job share one merged manifest.
    made = copy.deepcopy(pod)
    made["metadata"]["name"] = name
    made["metadata"]["labels"][NODE] = str(node)
    container = next(each for each in made["spec"]["containers"] if each["name"] == CONTAINER)
    container["env"].append({"name": "DISTTEST_POD", "value": str(node)})
    return made


def declared_capacity(text: str, scheduler: str) -> Capacity:
    """Return the capacity of nodes that a user declares: a pool at zero nodes has none to look at.

    Raises:
        UsageError: the text is not a shape of nodes.
    """
    match = re.fullmatch(r"([1-9]\d{0,4})x(\d{1,3})(?:x([1-9]\d{0,3}))?", text)
    if match is None or not (int(match[2]) or match[3]):
        raise UsageError(
            f"pod-nodes {text!r} is not a shape such as 4x8 (nodes, GPUs of each) or 4x0x96 (and processors of each)"
        )
    gpus = int(match[2])
    return Capacity(
        nodes=int(match[1]),
        gpus_per_node=gpus,
        cpus_per_node=int(match[3] or gpus),
        scheduler=scheduler,
    )


def capacity_of(nodes: Sequence[Node], wanted: WantedPod, resource: str, scheduler: str) -> Capacity:
    """Return the capacity of the nodes that such pods may use and that have the most GPUs.

    Raises:
        SchedulerError: there is no such node.
    """
    usable = [node for node in nodes if _accepts(node, wanted)]
    if not usable:
        raise SchedulerError(
            f"none of {len(nodes)} nodes is ready and accepts such pods; see kubectl get nodes, "
            "and the nodeSelector and tolerations of --pod-template"
        )
    gpus = [int(amount_of(node.status.allocatable.get(resource, "0"))) for node in usable]
    most = max(gpus)
    same = [node for node, count in zip(usable, gpus, strict=True) if count == most]
    cpus = min(int(amount_of(node.status.allocatable.get("cpu", "1"))) for node in same)
    return Capacity(nodes=len(same), gpus_per_node=most, cpus_per_node=max(1, cpus), scheduler=scheduler)


def _accepts(node: Node, wanted: WantedPod) -> bool:
    if node.ready.status != "True" or node.spec.unschedulable:
        return False
    if any(node.metadata.labels.get(key) != value for key, value in wanted.spec.node_selector.items()):
        return False
    # PreferNoSchedule keeps no pod off its node if there is no other one.
    keeping = [taint for taint in node.spec.taints if taint.effect != "PreferNoSchedule"]
    return all(_tolerated(taint, wanted) for taint in keeping)


def _tolerated(taint: Taint, wanted: WantedPod) -> bool:
    return any(
        toleration.key in ("", taint.key)
        # An empty key or effect of a toleration matches all of them.
        and toleration.effect in ("", taint.effect)
        and (
            toleration.operator == "Exists" or (toleration.key, toleration.value) == (taint.key, taint.value)
        )
        for toleration in wanted.spec.tolerations
    )
