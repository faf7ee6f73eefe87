"""Interpretation of Kubernetes' messages: how a pod ended, why it waits, what was refused. Pure functions.

A pod's own reason comes first, then the evidence of others (a condition, an event, its node). Neither phase nor exit
code shows how the tests went: Kubernetes 1.20 has pods past their deadline whose container is still "running".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

from disttest.extras.cluster.protocol.launcher import JobOutcome, JobState
from disttest.extras.cluster.protocol.wire import CLIENT_GONE, is_ours
from disttest.extras.kubernetes.objects import ClusterEvent, Node, Pod, TerminatedContainer

CONTAINER = "disttest"
"""Name of disttest's container in each pod."""

_LINES_KEPT = 20
_KILLED = 128 + 9
"""Exit code of a container that SIGKILL ended."""
_CALLED_OFF = "Cancelling deletion"
"""Beginning of the taint manager's event, with the reason of a deletion, for a node that came back in time."""

_AGAIN = "The tests are not at fault; run it again"
_LOST = "The node is down, cut off, or was removed (kubectl describe node); run it again"
_NO_IMAGE = "Check --image, and the image pull secrets of the pod template or its service account"

_POD_REASONS = {
    "DeadlineExceeded": (
        JobState.TIME_LIMIT,
        "Raise --job-limit, or give the tests shorter time limits",
    ),
    "Evicted": (
        JobState.EVICTED,
        f"Its node ran short of a resource. {_AGAIN}, or request more in the template",
    ),
    "Preempting": (JobState.PREEMPTED, f"A pod of higher priority needed its place. {_AGAIN}"),
    "NodeLost": (JobState.NODE_LOST, _LOST),
    "NodeShutdown": (JobState.NODE_LOST, _LOST),
    "Shutdown": (JobState.NODE_LOST, _LOST),
    "Terminated": (JobState.NODE_LOST, _LOST),
    "UnexpectedAdmissionError": (
        JobState.NODE_LOST,
        f"The node could not provide the requested resources. {_AGAIN}",
    ),
}
"""Reasons of pods, set by the kubelet."""

# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
_DISRUPTIONS = {
    "PreemptionByScheduler": (JobState.PREEMPTED, f"A pod of higher priority needed its place. {_AGAIN}"),
    "PreemptionByKubeScheduler": (JobState.PREEMPTED, f"A pod of higher priority needed its place. {_AGAIN}"),
    "DeletionByTaintManager": (JobState.NODE_LOST, _LOST),
    "DeletionByPodGC": (JobState.NODE_LOST, _LOST),
    "EvictionByEvictionAPI": (JobState.EVICTED, f"Its node is drained, or a user evicted it. {_AGAIN}"),
    "TerminationByKubelet": (JobState.EVICTED, f"Its node ran short of a resource, or shuts down. {_AGAIN}"),
}
"""Reasons of the condition ``DisruptionTarget``, which clusters have since 1.25."""

_EVENTS = {
    "Preempted": (JobState.PREEMPTED, f"A pod of higher priority needed its place. {_AGAIN}"),
    "TaintManagerEviction": (JobState.NODE_LOST, _LOST),
    "NodeControllerEviction": (JobState.NODE_LOST, _LOST),
    "Evicted": (JobState.EVICTED, f"Its node ran short of a resource. {_AGAIN}"),
}
"""Reasons of events of deleted pods; newer clusters also set the condition above."""

# The ends of the other pods follow from that of a lost node, and say less.
_GRAVEST = (
    JobState.NODE_LOST,
    JobState.PREEMPTED,
    JobState.EVICTED,
    JobState.TIME_LIMIT,
    JobState.OUT_OF_MEMORY,
    JobState.REJECTED,
    JobState.COMPLETED,
)

_NO_START = ("ContainerCannotRun", "StartError", "CreateContainerError", "RunContainerError")
_HOPELESS = {
    "ImagePullBackOff": _NO_IMAGE,
    "InvalidImageName": _NO_IMAGE,
    "ErrImageNeverPull": _NO_IMAGE,
    "CreateContainerConfigError": "A ConfigMap or Secret of the pod template does not exist",
    **dict.fromkeys(
        _NO_START, "The image cannot start the agent; check --image and the setting node-command"
    ),
}
"""Reasons of waiting containers that do not pass."""


def end_of_pod(
    pod: Pod, events: Sequence[ClusterEvent] = (), node: Node | None = None, *, gone: bool = False
) -> JobOutcome | None:
    """Return how a pod ended; None if it has not.

    Args:
        pod: the pod as last seen.
        events: events of the pod.
        node: node of the pod.
        gone: whether the pod no longer exists although the client did not delete it.
    """
    return (
        _by_itself(pod)
        or _by_others(pod, events, node, gone=gone)
        or _by_container(pod)
        or _by_node(pod, node)
    )


def _by_itself(pod: Pod) -> JobOutcome | None:
    status = pod.status
    if status.reason in _POD_REASONS:
        return _outcome(_POD_REASONS[status.reason], pod, f"{status.reason}: {status.message}")
    # OutOfcpu, OutOfnvidia.com/gpu: the kubelet counts again, and may refuse a pod that was placed there.
    if status.phase == "Failed" and status.reason.startswith("OutOf"):
        return _outcome(
            (JobState.NODE_LOST, _AGAIN), pod, f"its node refused it ({status.reason}): {status.message}"
        )
    # Kubernetes sets it before it deletes the pod, so it explains a deletion that has no other trace.
    disrupted = pod.is_true("DisruptionTarget")
    if disrupted is None:
        return None
    known = _DISRUPTIONS.get(disrupted.reason, (JobState.EVICTED, _AGAIN))
    return _outcome(known, pod, f"{disrupted.reason}: {disrupted.message}")


def _by_others(
    pod: Pod, events: Sequence[ClusterEvent], node: Node | None, *, gone: bool
) -> JobOutcome | None:
    for event in events:
        if event.reason in _EVENTS and not event.message.startswith(_CALLED_OFF):
            return _outcome(_EVENTS[event.reason], pod, f"{event.reason}: {event.message}")
    if not gone and not pod.metadata.deletion_timestamp:
        return None
    lost = _by_node(pod, node)
    if lost is not None:
        return lost
    if node is not None and node.spec.unschedulable:
        return _outcome(
            (JobState.EVICTED, _AGAIN),
            pod,
            f"node {node.metadata.name} is drained (cordoned), and its pod was deleted",
        )
    return _outcome(
        (JobState.EVICTED, _AGAIN),
        pod,
        "it was deleted from outside of this run: an eviction, or kubectl delete",
    )


def _by_container(pod: Pod) -> JobOutcome | None:
    ended = pod.state_of(CONTAINER).terminated
    if ended is None:
        if pod.status.phase not in ("Succeeded", "Failed"):
            return None
        return _outcome((JobState.COMPLETED, ""), pod, pod.status.reason, TerminatedContainer())
    if ended.reason == "OOMKilled":
        advice = "The tests need more memory than the pod may use; raise the limit in the pod template"
        return _outcome((JobState.OUT_OF_MEMORY, advice), pod, "OOMKilled", ended)
    if ended.reason in _NO_START:
        return _outcome(
            (JobState.REJECTED, _HOPELESS[ended.reason]), pod, f"{ended.reason}: {ended.message}", ended
        )
    # The agent's last word, from the termination log: it was well, and its input ended.
    if ended.message.startswith(CLIENT_GONE):
        return connection_lost(pod)
    return _outcome((JobState.COMPLETED, ""), pod, _last_words(ended) if ended.exit_code else "", ended)


def may_be_out_of_memory(pod: Pod) -> bool:
    """Whether a container was killed, and the reason may follow.

    Runtimes report the exit and the kill for want of memory separately, so that the kubelet may show ``Error`` first.
    """
    # The reason is about any process of the container, not only the one that ended:
    # https://github.com/kubernetes/kubernetes/issues/104454
    ended = pod.state_of(CONTAINER).terminated
    return ended is not None and ended.exit_code == _KILLED and ended.reason != "OOMKilled"


def connection_lost(pod: Pod) -> JobOutcome:
    """Return the outcome of a pod whose agent was well and lost its connection."""
    words = "the connection to it was lost (the API server was restarted, or the kubelet of its node)"
    return _outcome((JobState.NODE_LOST, _AGAIN), pod, words)


def _last_words(ended: TerminatedContainer) -> str:
    """Return the last lines of the agent's output, without its messages to the client."""
    lines = [line for line in ended.message.splitlines() if line.strip() and not is_ours(line.encode())]
    return "\n".join(lines[-_LINES_KEPT:])


def _by_node(pod: Pod, node: Node | None) -> JobOutcome | None:
    if node is None or node.ready.status == "True":
        return None
    ready = node.ready
    words = f"node {node.metadata.name} is not ready ({ready.reason}): {ready.message}"
    return _outcome((JobState.NODE_LOST, _LOST), pod, words)


def _outcome(
    known: tuple[JobState, str], pod: Pod, words: str, ended: TerminatedContainer | None = None
) -> JobOutcome:
    state, advice = known
    where = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
    words = words.strip().removesuffix(":").removesuffix(".")
    ended = ended or pod.state_of(CONTAINER).terminated
    return JobOutcome(
        state=state,
        reason=f"pod {pod.metadata.name}{where}: {words}" if words else "",
        advice=advice,
        exit_code=ended.exit_code if ended else None,
    )


def end_of_job(ends: Iterable[JobOutcome]) -> JobOutcome:
    """Return the gravest end of a job's pods, with the first non-zero exit code."""
    known = list(ends)
    gravest = min(
        known, key=lambda end: _GRAVEST.index(end.state), default=JobOutcome(state=JobState.COMPLETED)
    )
    code = next((end.exit_code for end in known if end.exit_code), gravest.exit_code)
    return JobOutcome(state=gravest.state, reason=gravest.reason, advice=gravest.advice, exit_code=code)


def waits_for(pod: Pod) -> str:
    """Return why a pod does not run yet; empty if it does, or gives no reason."""
    unscheduled = next(
        (c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), None
    )
    if unscheduled is not None:
        return unscheduled.message.strip().removesuffix(".") or unscheduled.reason
    waiting = pod.state_of(CONTAINER).waiting
    if waiting is None or waiting.reason in ("", "ContainerCreating", "PodInitializing"):
        return ""
    return f"{waiting.reason}: {waiting.message}"


def is_held(pod: Pod) -> bool:
    """Whether the scheduler found no node for the pod."""
    return any(
        c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
        for c in pod.status.conditions
    )


def stuck(pod: Pod, events: Sequence[ClusterEvent] = ()) -> JobOutcome | None:
    """Return the reason why a pod will never run; None if it may still start."""
    waiting = pod.state_of(CONTAINER).waiting
    if waiting is None or waiting.reason not in _HOPELESS:
        return None
    said = next((e.message for e in events if e.message.startswith("Failed to pull image")), waiting.message)
    return _outcome((JobState.REJECTED, _HOPELESS[waiting.reason]), pod, f"{waiting.reason}: {said}")


def waits_for_quota(complaint: str) -> str:
    """Return the exceeded quota if a pod may fit later; empty if the refusal has another reason or is final.

    ``exceeded quota: q, requested: requests.nvidia.com/gpu=2, used: …=4, limited: …=4``
    """
    match = re.search(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)", complaint)
    if match is None:
        return ""
    wanted, limits = _amounts(match[2]), _amounts(match[4])
    # More than the whole quota: no other job's end makes room for it.
    never = any(amount > limits.get(name, amount) for name, amount in wanted.items())
    return "" if never else match[0]


def waits_for_server(complaint: str) -> str:
    """Return the complaint if the same request may succeed later; empty if the refusal is final.

    The reason that kubectl prints in ``Error from server (REASON)`` decides. Without one the server did not answer, or
    answered from below its API: ``Error from server: etcdserver: leader changed``.
    """
    said = re.search(r"Error from server(?: \((\w+)\))?: ", complaint)
    if said is None:
        return complaint if re.search(_AWAY, complaint) else ""
    return "" if said[1] in _FINAL_REASONS else complaint


_FINAL_REASONS = (
    "AlreadyExists",
    "BadRequest",
    "Expired",
    "Forbidden",
    "Gone",
    "Invalid",
    "MethodNotAllowed",
    "NotAcceptable",
    "NotFound",
    "RequestEntityTooLarge",
    "Unauthorized",
    "UnsupportedMediaType",
)
"""Reasons (``metav1.StatusReason``) for which the same request fails again.

All others pass: ServiceUnavailable, TooManyRequests, Timeout, ServerTimeout, Conflict, StoreReadError, and InternalError,
which an admission webhook without endpoints causes.
"""
_AWAY = (
    r"was refused|connection reset|i/o timeout|TLS handshake timeout|does not answer|deadline exceeded|EOF"
)
"""Messages of kubectl while an API server restarts."""


def _amounts(text: str) -> dict[str, Decimal]:
    return {name: amount_of(amount) for name, _, amount in (part.partition("=") for part in text.split(","))}


def refusal(complaint: str) -> JobOutcome:
    """Interpret a refusal of the API server."""
    for pattern, state, advice in _REFUSALS:
        if re.search(pattern, complaint):
            return JobOutcome(state=state, reason=complaint, advice=advice)
    return JobOutcome(
        state=JobState.REJECTED, reason=complaint, advice="Kubernetes refuses this job; see the reason"
    )


def stream_refusal(complaint: str) -> JobOutcome | None:
    """Interpret a refused stream to a pod's agent; None if kubectl complains about something else."""
    return refusal(complaint) if re.search(_FORBIDDEN, complaint) else None


_FORBIDDEN = r"\(Forbidden\)|is forbidden"
_REFUSALS = (
    (
        r"exceeded quota",
        JobState.REJECTED,
        "The quota of the namespace is smaller than this job; request less, or a larger quota",
    ),
    (
        _FORBIDDEN,
        JobState.REJECTED,
        "See the role that disttest needs in docs/kubernetes.md (kubectl auth can-i --list shows yours)",
    ),
    (
        r"\(Unauthorized\)|must be logged in|provide credentials",
        JobState.UNREACHABLE,
        "Log in again; kubectl auth whoami, or kubectl get pods, has to work",
    ),
    (
        r"refused|no such host|timed? ?out|Timeout|EOF|unreachable|TLS|x509|Unable to connect|does not answer",
        JobState.UNREACHABLE,
        "The API server does not answer; see kubectl cluster-info",
    ),
    (
        r"namespaces? \S+ not found",
        JobState.REJECTED,
        "Name an existing one with --partition CONTEXT/NAMESPACE",
    ),
)

_SUFFIXES = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{
        suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
    "m": Decimal("0.001"),
}


def amount_of(text: str) -> Decimal:
    """Parse a quantity such as ``2``, ``1930m`` or ``8Gi``; anything else counts as zero."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    if match is None or match[2] not in _SUFFIXES:
        return Decimal(0)
    return Decimal(match[1]) * _SUFFIXES[match[2]]
