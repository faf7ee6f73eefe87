"""What Kubernetes says, judged: pods, nodes and events as kubectl shows them, down to the fields that decide."""

from __future__ import annotations

import msgspec
import pytest

from disttest.extras.cluster.protocol.launcher import JobOutcome, JobState
from disttest.extras.kubernetes import words
from disttest.extras.kubernetes.objects import ClusterEvent, Node, Pod

NAME = "disttest-0123456789-7-t8-j1-n0"


def a_pod(status: dict[str, object] | None = None, **metadata: object) -> Pod:
    """On node n1, unless its status says that it was not placed."""
    raw = {
        "metadata": {"name": NAME, "creationTimestamp": "2026-11-23T01:00:00Z", **metadata},
        "spec": {"nodeName": "n1", "containers": [{"name": "disttest"}]},
        "status": {"phase": "Running", "qosClass": "Burstable", **(status or {})},
    }
    return msgspec.json.decode(msgspec.json.encode(raw), type=Pod)


def ended(**terminated: object) -> list[dict[str, object]]:
    """The status of our container, behind that of another one."""
    other = {"name": "sidecar", "state": {"running": {"startedAt": "2026-11-23T01:00:01Z"}}}
    ours = {"name": "disttest", "ready": False, "state": {"terminated": terminated}, "lastState": {}}
    return [other, ours]


def waiting(reason: str, message: str = "") -> list[dict[str, object]]:
    return [{"name": "disttest", "state": {"waiting": {"reason": reason, "message": message}}}]


def disrupted(reason: str, message: str) -> dict[str, object]:
    """As clusters write it since 1.25."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return {"conditions": [{"type": "Ready", "status": "False"}, condition]}


def a_node(*, ready: str = "True", cordoned: bool = False) -> Node:
    raw = {
        "metadata": {"name": "n1"},
        "spec": {"unschedulable": cordoned},
        "status": {
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {
                    "type": "Ready",
                    "status": ready,
                    "reason": "KubeletReady" if ready == "True" else "NodeStatusUnknown",
                    "message": "Kubelet stopped posting node status.",
                },
            ]
        },
    }
    return msgspec.convert(raw, type=Node)


OOM = ended(exitCode=137, reason="OOMKilled")
DELETED = {"deletionTimestamp": "2026-11-23T01:02:00Z"}


class TestTheEndOfAPod:
    @pytest.mark.parametrize(
        ("status", "state", "reason"),
        [
            ({"phase": "Failed", "containerStatuses": OOM}, JobState.OUT_OF_MEMORY, "OOMKilled"),
            (
                {
                    "phase": "Failed",
                    "reason": "DeadlineExceeded",
                    "message": "Pod was active on the node longer than the specified deadline",
                    # 1.20 leaves it so
                    "containerStatuses": [{"name": "disttest", "state": {"running": {"startedAt": "…"}}}],
                },
                JobState.TIME_LIMIT,
                "DeadlineExceeded: Pod was active on the node longer than the specified deadline",
            ),
            (
                {
                    "phase": "Failed",
                    "reason": "Evicted",
                    "message": "The node was low on resource: memory. ",
                    "containerStatuses": OOM,
                },
                JobState.EVICTED,
                "Evicted: The node was low on resource: memory",
            ),
            (
                {
                    "phase": "Failed",
                    "reason": "OutOfnvidia.com/gpu",
                    "message": "Node didn't have enough resource",
                },
                JobState.NODE_LOST,
                "its node refused it (OutOfnvidia.com/gpu): Node didn't have enough resource",
            ),
            (
                {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"},
                JobState.NODE_LOST,
                "UnexpectedAdmissionError: Allocate failed",
            ),
            (
                disrupted(
                    "PreemptionByScheduler",
                    "default-scheduler: preempting to accommodate a higher priority pod",
                ),
                JobState.PREEMPTED,
                "PreemptionByScheduler: default-scheduler: preempting to accommodate a higher priority pod",
            ),
            (
                disrupted("EvictionByEvictionAPI", "Eviction API: evicting"),
                JobState.EVICTED,
                "EvictionByEvictionAPI: Eviction API: evicting",
            ),
            (
                disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
                JobState.NODE_LOST,
                "DeletionByTaintManager: Taint manager: deleting due to NoExecute taint",
            ),
            (
                disrupted("TerminationByKubelet", "The node was low on resource: ephemeral-storage"),
                JobState.EVICTED,
                "TerminationByKubelet: The node was low on resource: ephemeral-storage",
            ),
            (disrupted("SomethingNew", "why"), JobState.EVICTED, "SomethingNew: why"),
            (
                {
                    "phase": "Failed",
                    "containerStatuses": ended(
                        exitCode=127,
                        reason="ContainerCannotRun",
                        message='exec: "disttest": executable file not found in $PATH',
                    ),
                },
                JobState.REJECTED,
                'ContainerCannotRun: exec: "disttest": executable file not found in $PATH',
            ),
            (
                {"phase": "Succeeded", "containerStatuses": ended(exitCode=0, message="the client is gone")},
                JobState.NODE_LOST,
                "the connection to it was lost (the API server was restarted, or the kubelet of its node)",
            ),
        ],
    )
    def test_in_the_clusters_words(self, status: dict[str, object], state: JobState, reason: str) -> None:
        end = words.end_of_pod(a_pod(status))
        assert end is not None
        assert (end.state, end.reason) == (state, f"pod {NAME} on node n1: {reason}")
        assert end.advice

    def test_a_pod_that_runs_has_not_ended(self) -> None:
        running = [{"name": "disttest", "state": {"running": {}}}]
        assert words.end_of_pod(a_pod({"containerStatuses": running})) is None
        assert words.end_of_pod(a_pod({"containerStatuses": running}), (), a_node()) is None

    @pytest.mark.parametrize("code", [0, 3])
    def test_an_exit_code_decides_nothing(self, code: int) -> None:
        status = ended(exitCode=code, reason="Error", message="%disttest 0 0 . {}\nImportError: no torch\n")
        end = words.end_of_pod(a_pod({"phase": "Failed", "containerStatuses": status}))
        reason = f"pod {NAME} on node n1: ImportError: no torch" if code else ""
        assert end == JobOutcome(state=JobState.COMPLETED, reason=reason, exit_code=code)

    @pytest.mark.parametrize(
        ("event", "state"),
        [
            ("Preempted", JobState.PREEMPTED),
            ("TaintManagerEviction", JobState.NODE_LOST),
            ("Killing", JobState.EVICTED),
        ],
    )
    def test_who_deleted_it_stands_in_an_event_where_there_is_no_condition(
        self, event: str, state: JobState
    ) -> None:
        noted = (
            ClusterEvent(reason="Scheduled"),
            ClusterEvent(reason=event, message="by ci/other on node n1"),
        )
        end = words.end_of_pod(a_pod(None, **DELETED), noted, a_node())
        assert end is not None
        assert end.state is state

    def test_a_deletion_that_was_called_off_explains_nothing(self) -> None:
        noted = (
            ClusterEvent(
                reason="TaintManagerEviction", message=f"Cancelling deletion of Pod disttest/{NAME}"
            ),
        )
        running = [{"name": "disttest", "state": {"running": {}}}]
        assert words.end_of_pod(a_pod({"containerStatuses": running}), noted, a_node()) is None

    @pytest.mark.parametrize("how", ["terminating", "gone"])
    def test_a_deleted_pod_is_told_by_its_node(self, how: str) -> None:
        metadata = DELETED if how == "terminating" else {}
        pod, gone = a_pod({"containerStatuses": OOM}, **metadata), how == "gone"
        lost = words.end_of_pod(pod, (), a_node(ready="Unknown"), gone=gone)
        drained = words.end_of_pod(pod, (), a_node(cordoned=True), gone=gone)
        deleted = words.end_of_pod(pod, (), a_node(), gone=gone)
        assert lost is not None and drained is not None and deleted is not None
        assert (lost.state, drained.state, deleted.state) == (
            JobState.NODE_LOST,
            JobState.EVICTED,
            JobState.EVICTED,
        )
        assert "node n1 is not ready (NodeStatusUnknown): Kubelet stopped posting node status" in lost.reason
        assert "node n1 is drained (cordoned)" in drained.reason
        assert "it was deleted from outside of this run" in deleted.reason

    def test_a_pod_on_a_node_that_is_not_ready_is_lost(self) -> None:
        end = words.end_of_pod(a_pod(), (), a_node(ready="Unknown"))
        assert end is not None
        assert end.state is JobState.NODE_LOST

    def test_of_several_the_gravest_counts_and_the_first_bad_code_is_kept(self) -> None:
        well = JobOutcome(state=JobState.COMPLETED, exit_code=0)
        failed = JobOutcome(state=JobState.COMPLETED, exit_code=3)
        lost = JobOutcome(state=JobState.NODE_LOST, reason="why")
        end = words.end_of_job([well, failed, lost])
        assert (end.state, end.reason, end.exit_code) == (JobState.NODE_LOST, "why", 3)
        assert words.end_of_job([]).state is JobState.COMPLETED


class TestWaiting:
    def test_the_scheduler_names_the_resource_and_the_taint(self) -> None:
        message = (
            "0/3 nodes are available: 1 node(s) had taint {gpu: yes}, that the pod didn't tolerate, "
            "2 Insufficient nvidia.com/gpu."
        )
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod = a_pod({"phase": "Pending", "conditions": [condition]})
        assert words.waits_for(pod) == message[:-1]
        assert words.is_held(pod)
        assert words.stuck(pod) is None

    def test_a_queue_holds_it(self) -> None:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
        pod = a_pod({"phase": "Pending", "conditions": [condition]})
        assert words.waits_for(pod) == "Scheduling is blocked due to non-empty scheduling gates"
        assert not words.is_held(pod)

    @pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
    def test_a_pod_that_starts_waits_for_nothing(self, reason: str) -> None:
        pod = a_pod({"phase": "Pending", "containerStatuses": waiting(reason)})
        assert (words.waits_for(pod), words.stuck(pod)) == ("", None)

    def test_an_image_that_was_not_pulled_once_may_come(self) -> None:
        pod = a_pod({"containerStatuses": waiting("ErrImagePull", "rpc error: i/o timeout")})
        assert words.waits_for(pod) == "ErrImagePull: rpc error: i/o timeout"
        assert words.stuck(pod) is None

    @pytest.mark.parametrize(
        ("reason", "advice"),
        [
            ("ImagePullBackOff", "--image"),
            ("InvalidImageName", "--image"),
            ("ErrImageNeverPull", "--image"),
            ("CreateContainerConfigError", "ConfigMap or Secret"),
            ("RunContainerError", "the setting node-command"),
        ],
    )
    def test_what_will_not_pass_is_refused(self, reason: str, advice: str) -> None:
        end = words.stuck(a_pod({"containerStatuses": waiting(reason, "Back-off")}))
        assert end is not None
        assert (end.state, end.reason) == (JobState.REJECTED, f"pod {NAME} on node n1: {reason}: Back-off")
        assert advice in end.advice

    def test_why_an_image_is_not_there_is_an_event(self) -> None:
        pulled = 'Failed to pull image "nope:1": rpc error: code = Unknown desc = manifest unknown'
        pod = a_pod({"containerStatuses": waiting("ImagePullBackOff", 'Back-off pulling image "nope:1"')})
        end = words.stuck(
            pod, (ClusterEvent(reason="Pulling"), ClusterEvent(reason="Failed", message=pulled))
        )
        assert end is not None
        assert end.reason.endswith(pulled)


class TestRefusals:
    QUOTA = (
        'Error from server (Forbidden): error when creating "STDIN": pods "x" is forbidden: exceeded quota: gpus, '
        "requested: requests.nvidia.com/gpu={}, used: requests.nvidia.com/gpu=3, limited: requests.nvidia.com/gpu=4"
    )

    def test_a_quota_that_is_used_up_is_waited_for(self) -> None:
        assert words.waits_for_quota(self.QUOTA.format(2)).startswith("exceeded quota: gpus, requested: ")

    def test_what_kubectl_says_of_a_stream_is_a_refusal_only_where_a_right_is_missing(self) -> None:
        missing = 'pods "x" is forbidden: User "y" cannot create resource "pods/attach" in API group ""'
        end = words.stream_refusal(missing)
        assert end is not None
        assert (end.state, end.reason) == (JobState.REJECTED, missing)
        assert words.stream_refusal("error: unable to upgrade connection: container not found") is None

    def test_a_quota_that_is_too_small_is_not(self) -> None:
        assert words.waits_for_quota(self.QUOTA.format(8)) == ""
        assert words.refusal(self.QUOTA.format(8)).advice.startswith("The quota of the namespace is smaller")

    @pytest.mark.parametrize(
        ("complaint", "state", "advice"),
        [
            (
                'Error from server (Forbidden): pods is forbidden: User "x" cannot create resource "pods" in API group ""',
                JobState.REJECTED,
                "docs/kubernetes.md",
            ),
            (
                "error: You must be logged in to the server (Unauthorized)",
                JobState.UNREACHABLE,
                "Log in again",
            ),
            (
                "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?",
                JobState.UNREACHABLE,
                "kubectl cluster-info",
            ),
            (
                "Unable to connect to the server: dial tcp: i/o timeout",
                JobState.UNREACHABLE,
                "kubectl cluster-info",
            ),
            ('Error from server (NotFound): namespaces "nope" not found', JobState.REJECTED, "--partition"),
            (
                "The Pod is invalid: spec.containers[0].image: Required value",
                JobState.REJECTED,
                "refuses this job",
            ),
        ],
    )
    def test_the_api_servers_words_and_what_to_do(self, complaint: str, state: JobState, advice: str) -> None:
        end = words.refusal(complaint)
        assert (end.state, end.reason) == (state, complaint)
        assert advice in end.advice


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2", "2"), ("1930m", "1.93"), ("8Gi", str(8 * 2**30)), ("64k", "64000"), ("two", "0"), ("1x", "0")],
)
def test_quantities(text: str, amount: str) -> None:
    assert words.amount_of(text) == words.Decimal(amount)
