"""The pods of a job, against a kubectl that answers from a script: what is asked for, waited for, given back and told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from disttest.errors import SchedulerError, UsageError
from disttest.extras.cluster.node.assignment import find_assignment
from disttest.extras.cluster.protocol.job import JobKind, JobShape, JobSpec
from disttest.extras.cluster.protocol.launcher import JobState, LauncherOptions
from disttest.extras.kubernetes import pods as manifests
from disttest.extras.kubernetes.gang import PodGang, Turn
from disttest.extras.kubernetes.kubectl import Kubectl, KubectlRefusal, PodBoard, clean
from disttest.extras.kubernetes.limits import (
    GANG_HOLD_S,
    KUBERNETES_FINAL_S,
    KUBERNETES_LONGEST_POLL_S,
    KUBERNETES_RETRY_S,
)
from disttest.extras.kubernetes.objects import Node, WantedPod, WantedSpec
from disttest.extras.kubernetes.scheduler import KubernetesLauncher

OPTIONS = LauncherOptions()
QUOTA = (
    'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, '
    "used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4"
)


def a_job(number: int = 1, *, nodes: int = 2, gpus: int = 0, image: str = "org/tests:1") -> JobSpec:
    return JobSpec(
        job_id=f"j{number}",
        run_id="0123456789-7-t8",
        kind=JobKind.WORLD,
        shape=JobShape(nodes=nodes, ranks_per_node=2, gpus_per_node=gpus),
        tests=(),
        targets=(),
        limit_s=90.5,
        image=image,
    )


class Cluster(Kubectl):
    """A cluster of one table: pods by name, each with the status that a test gives it."""

    def __init__(self) -> None:
        super().__init__({}, OPTIONS)
        self.now_s = 1000.0
        self.asked: list[tuple[str, ...]] = []
        self.made: list[dict[str, Any]] = []
        self.pods: dict[str, dict[str, Any]] = {}
        self.refusals: list[str] = []
        self.owners: set[str] = set()
        """Names of the ConfigMaps that exist."""
        self.objects: list[dict[str, Any]] = []
        """Further objects of jobs."""
        self.kinds: list[str] = []
        """Kinds in the order in which they were asked for."""
        self.forbidden = ""
        self.answers = True
        self.node_ready = "True"
        self.board = PodBoard(self, "me", lambda: self.now_s)
        self.turn = Turn()

    def call(self, *words: str, text: str = "") -> str:
        self.asked.append(words)
        if not self.answers:
            raise KubectlRefusal("the connection was refused", words)
        match words[0]:
            case "create":
                return self._create(json.loads(text))
            case "delete":
                self.pods.clear()
                return ""
            case "get" if words[1] == "pods":
                return json.dumps({"items": list(self.pods.values())})
            case "get" if words[1].startswith("configmap/"):
                return json.dumps({"metadata": {"name": words[1].partition("/")[2], "uid": "u1"}})
            case "get" if words[1] == "events":
                return json.dumps({"items": []})
        ready = {
            "type": "Ready",
            "status": self.node_ready,
            "reason": "NodeStatusUnknown",
            "message": "silent",
        }
        return json.dumps({"metadata": {"name": "n1"}, "status": {"conditions": [ready]}})

    def _create(self, made: dict[str, Any]) -> str:
        self.kinds.append(made["kind"])
        if made["kind"] == self.forbidden:
            raise KubectlRefusal("Error from server (Forbidden): cannot create resource", ("create",))
        if made["kind"] not in ("ConfigMap", "List"):
            self.objects.append(made)
            if made["metadata"]["name"] in self.owners:
                raise KubectlRefusal("Error from server (AlreadyExists): it exists", ("create",))
            return ""
        if made["kind"] == "ConfigMap":
            if made["metadata"]["name"] in self.owners:
                raise KubectlRefusal("Error from server (AlreadyExists): configmaps exists", ("create",))
            return json.dumps({**made, "metadata": {**made["metadata"], "uid": "u1"}})
        if self.refusals:
            raise KubectlRefusal(self.refusals.pop(0), ("create",))
        self.made += made["items"]
        self.pods |= {
            pod["metadata"]["name"]: {**pod, "status": {"phase": "Pending"}} for pod in made["items"]
        }
        return ""

    def gang(self, job: JobSpec, *, objects: Sequence[manifests.Manifest] = ()) -> PodGang:
        pod = manifests.complete_pod(manifests.pod_patch(job, OPTIONS, "me"), job)
        return PodGang(
            job,
            pod,
            objects=objects,
            client="me",
            kubectl=self,
            board=self.board,
            turn=self.turn,
            clock=lambda: self.now_s,
            sleep=self.sleep,
            jitter=lambda: 0.5,
        )

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def place(self, name: str) -> None:
        self.pods[name]["spec"]["nodeName"] = "n1"

    def run(self, name: str) -> None:
        self.place(name)
        running = [{"name": "disttest", "state": {"running": {}}}]
        self.pods[name]["status"] = {"phase": "Running", "containerStatuses": running}

    def hold(self, name: str) -> None:
        reason = {"reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient cpu."}
        self.pods[name]["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", **reason}]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def until(cluster: Cluster, gang: PodGang, holds: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = cluster.now_s + limit_s
    while not holds():
        assert cluster.now_s < deadline
        cluster.now_s += 0.2
        gang.step()


class TestAskingForPods:
    def test_one_for_each_node_owned_by_one_object_and_apart(self, cluster: Cluster) -> None:
        gang = cluster.gang(a_job())
        gang.step()
        assert [pod["metadata"]["name"] for pod in cluster.made] == [
            "disttest-0123456789-7-t8-j1-n0",
            "disttest-0123456789-7-t8-j1-n1",
        ]
        for number, pod in enumerate(cluster.made):
            (owner,) = pod["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["uid"]) == (
                "ConfigMap",
                "disttest-0123456789-7-t8-j1",
                "u1",
            )
            spec = pod["spec"]
            assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", 91)
            assert spec["automountServiceAccountToken"] is False
            assert {"name": "disttest-shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]
            apart = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert apart[0]["topologyKey"] == "kubernetes.io/hostname"
            (container,) = spec["containers"]
            assert container["command"] == ["disttest", "node-agent"]
            assert {"name": "DISTTEST_POD", "value": str(number)} in container["env"]
            assert container["resources"] == {"requests": {"cpu": "2"}}

    def test_gpus_are_asked_for_by_name_and_hidden_where_none_were(self, cluster: Cluster) -> None:
        options = LauncherOptions(gpu_resource="amd.com/gpu")
        granted = manifests.pod_patch(a_job(gpus=2), options, "me")["spec"]["containers"][0]
        without = manifests.pod_patch(a_job(), options, "me")["spec"]["containers"][0]
        assert granted["resources"] == {"limits": {"amd.com/gpu": "2"}}
        hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
        assert hidden in without["env"]
        assert hidden not in granted["env"]

    def test_a_template_decides_what_is_not_ours(self) -> None:
        template = {
            "metadata": {},
            "spec": {
                "automountServiceAccountToken": True,
                "containers": [
                    {"name": "side", "image": "b"},
                    {"name": "disttest", "image": "a", "resources": {"limits": {"cpu": "8"}}},
                ],
            },
        }
        pod = manifests.complete_pod(template, a_job(nodes=1))
        assert pod["spec"]["automountServiceAccountToken"] is True
        assert pod["spec"]["containers"][1]["resources"] == {"limits": {"cpu": "8"}}
        assert "affinity" not in pod["spec"]

    def test_nobody_names_an_image(self) -> None:
        job = a_job(image="")
        with pytest.raises(SchedulerError, match="needs an image with disttest and torch; give --image"):
            manifests.complete_pod(manifests.pod_patch(job, OPTIONS, "me"), job)

    @pytest.mark.parametrize(
        ("mounts", "image", "why"),
        [
            ((), "", "needs an image with disttest"),
            (("/data",), "org/tests:1", "--mount works with Slurm only"),
        ],
    )
    def test_options_with_which_no_pod_can_run_are_refused_once(
        self, mounts: tuple[str, ...], image: str, why: str
    ) -> None:
        with pytest.raises(SchedulerError, match=why):
            KubernetesLauncher({}, LauncherOptions(mounts=mounts)).check(a_job(image=image))

    def test_a_queue_of_kueue_admits_the_pods_together(self) -> None:
        metadata = manifests.pod_patch(a_job(), LauncherOptions(account="ci"), "me")["metadata"]
        assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "ci"
        assert metadata["labels"]["kueue.x-k8s.io/pod-group-name"] == a_job().name
        assert metadata["annotations"] == {"kueue.x-k8s.io/pod-group-total-count": "2"}

    def test_no_variable_of_the_client_stands_in_a_pod(self, cluster: Cluster) -> None:
        gang = cluster.gang(a_job())
        gang.step()
        names = {variable["name"] for variable in cluster.made[0]["spec"]["containers"][0]["env"]}
        assert {name for name in names if not name.startswith("DISTTEST_POD")} == {"NVIDIA_VISIBLE_DEVICES"}


POLICY = """{
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "DISTTEST_JOB"},
    "spec": {"podSelector": {"matchLabels": {"disttest-job": "DISTTEST_JOB"}}}
}
"""
CLAIM = (
    '{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "DISTTEST_JOB-gpus"}}'
)


class TestFurtherObjects:
    """A user's objects of each job: made before its pods, owned as they are."""

    def gang(self, cluster: Cluster) -> PodGang:
        return cluster.gang(a_job(), objects=manifests.objects_of(POLICY + CLAIM, a_job()))

    def test_they_are_made_once_before_the_pods(self, cluster: Cluster) -> None:
        cluster.refusals = [QUOTA]
        gang = self.gang(cluster)
        gang.step()
        cluster.now_s += KUBERNETES_RETRY_S
        gang.step()
        assert cluster.kinds == ["ConfigMap", "NetworkPolicy", "ResourceClaim", "List", "List"]

    def test_they_have_the_name_and_the_owner_of_the_job(self, cluster: Cluster) -> None:
        self.gang(cluster).step()
        policy, claim = cluster.objects
        name = a_job().name
        assert [each["metadata"]["name"] for each in cluster.objects] == [name, f"{name}-gpus"]
        assert policy["spec"]["podSelector"] == {"matchLabels": {"disttest-job": name}}
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": "u1"}
        assert [each["metadata"]["ownerReferences"] for each in (policy, claim)] == [[owner], [owner]]

    def test_a_lost_answer_makes_none_twice(self, cluster: Cluster) -> None:
        cluster.owners = {a_job().name}
        gang = self.gang(cluster)
        gang.step()
        assert gang.refused is None
        assert gang.has_asked

    def test_a_refused_object_ends_the_job(self, cluster: Cluster) -> None:
        cluster.forbidden = "ResourceClaim"
        gang = self.gang(cluster)
        gang.step()
        assert gang.refused is not None
        assert "docs/kubernetes.md" in gang.refused.advice
        assert cluster.made == []

    def test_one_name_for_all_jobs(self) -> None:
        with pytest.raises(SchedulerError, match="'fixed' has one name for all jobs; put DISTTEST_JOB into"):
            manifests.objects_of(CLAIM.replace("DISTTEST_JOB-gpus", "fixed"), a_job())

    def test_a_template_may_refer_to_them(self) -> None:
        pod = {"spec": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "DISTTEST_JOB-gpus"}]}}
        (claim,) = manifests.named_for(a_job(), pod)["spec"]["resourceClaims"]
        assert claim["resourceClaimName"] == f"{a_job().name}-gpus"

    def test_a_priority_class(self) -> None:
        spec = manifests.pod_patch(a_job(), LauncherOptions(priority_class="low"), "me")["spec"]
        assert spec["priorityClassName"] == "low"
        assert "priorityClassName" not in manifests.pod_patch(a_job(), OPTIONS, "me")["spec"]


class TestWaiting:
    def test_a_used_up_quota_is_waited_for(self, cluster: Cluster) -> None:
        cluster.refusals = [QUOTA]
        gang = cluster.gang(a_job())
        gang.step()
        assert gang.waits.startswith("exceeded quota: gpus")
        assert gang.refused is None
        cluster.now_s += KUBERNETES_RETRY_S
        gang.step()
        assert [pod["metadata"]["name"][-8:] for pod in cluster.made] == ["-n0-try2", "-n1-try2"]

    @pytest.mark.parametrize(
        "complaint",
        [
            "Error from server (ServiceUnavailable): the server is currently unable to handle the request",
            "Error from server (TooManyRequests): the server has received too many requests",
            "Error from server: etcdserver: leader changed",
            "Error from server (Timeout): context deadline exceeded",
            'Error from server (InternalError): failed calling webhook "w": no endpoints available for service "w"',
            "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?",
        ],
    )
    def test_a_server_that_cannot_answer_now_is_asked_again(self, cluster: Cluster, complaint: str) -> None:
        cluster.refusals = [complaint] * 3
        gang = cluster.gang(a_job())
        gang.step()
        assert gang.waits == complaint
        until(cluster, gang, lambda: bool(cluster.made))
        assert gang.refused is None
        assert [pod["metadata"]["name"][-8:] for pod in cluster.made] == ["-n0-try4", "-n1-try4"]

    @pytest.mark.parametrize("reason", ["Invalid", "NotFound", "BadRequest", "Unauthorized"])
    def test_a_final_refusal_is_not_repeated(self, cluster: Cluster, reason: str) -> None:
        cluster.refusals = [f"Error from server ({reason}): EOF, and so on"]
        gang = cluster.gang(a_job())
        gang.step()
        assert gang.refused is not None

    def test_an_owner_whose_creation_was_not_answered_is_found(self, cluster: Cluster) -> None:
        cluster.owners = {a_job().name}
        gang = cluster.gang(a_job())
        gang.step()
        assert gang.owner_uid == "u1"
        assert len(cluster.made) == 2

    def test_what_is_forbidden_is_refused(self, cluster: Cluster) -> None:
        cluster.refusals = ['Error from server (Forbidden): pods is forbidden: User "x" cannot create']
        gang = cluster.gang(a_job())
        gang.step()
        assert gang.refused is not None
        assert gang.refused.state is JobState.REJECTED
        assert cluster.turn.acquire(a_job(2)), "others may go on"

    def test_an_image_that_is_not_there_is_refused(self, cluster: Cluster) -> None:
        gang = cluster.gang(a_job(nodes=1))
        gang.step()
        (name,) = cluster.pods
        waiting = {"reason": "ImagePullBackOff", "message": "Back-off"}
        cluster.pods[name]["status"]["containerStatuses"] = [
            {"name": "disttest", "state": {"waiting": waiting}}
        ]
        until(cluster, gang, lambda: gang.refused is not None)
        assert "ImagePullBackOff" in str(gang.refused)

    def test_a_second_job_over_nodes_waits_until_the_first_is_placed(self, cluster: Cluster) -> None:
        first, second, lease = (
            cluster.gang(a_job(number, nodes=n)) for number, n in ((1, 2), (2, 2), (3, 1))
        )
        for gang in (first, second, lease):
            gang.step()
        assert [pod["metadata"]["name"][-5:] for pod in cluster.made] == ["j1-n0", "j1-n1", "j3-n0"]
        for name in list(cluster.pods)[:2]:
            cluster.place(name)
        until(cluster, first, lambda: cluster.turn.acquire(a_job(2)))
        second.step()
        assert len(cluster.made) == 5

    def test_nodes_that_are_held_in_vain_are_given_back_and_asked_for_again(self, cluster: Cluster) -> None:
        gang = cluster.gang(a_job())
        gang.step()
        one, other = cluster.pods
        cluster.place(one)
        cluster.hold(other)
        start_s = cluster.now_s
        until(cluster, gang, lambda: not cluster.pods)
        assert GANG_HOLD_S <= cluster.now_s - start_s < GANG_HOLD_S + 2 * KUBERNETES_LONGEST_POLL_S
        assert cluster.turn.acquire(a_job(2))
        cluster.turn.release(a_job(2))
        until(cluster, gang, lambda: len(cluster.made) == 4)

    def test_what_was_given_back_is_forgotten(self, cluster: Cluster) -> None:
        gang = cluster.gang(a_job(nodes=3))
        gang.step()
        deleted, placed, other = cluster.pods
        cluster.place(placed)
        cluster.hold(other)
        del cluster.pods[deleted]
        until(cluster, gang, lambda: gang.over() == [0])
        until(cluster, gang, lambda: not cluster.pods)
        assert not gang.has_asked
        assert (gang.over(), gang.running()) == ([], [])
        until(cluster, gang, lambda: gang.has_asked)
        assert [pod["metadata"]["name"][-7:] for pod in cluster.made[3:]] == ["n0-try2", "n1-try2", "n2-try2"]

    def test_what_holds_nothing_keeps_its_place_in_the_queue(self, cluster: Cluster) -> None:
        gang = cluster.gang(a_job())
        gang.step()
        for name in cluster.pods:
            cluster.hold(name)
        for _ in range(1000):
            cluster.now_s += 0.2
            gang.step()
        assert gang.waits == "0/2 nodes are available: 2 Insufficient cpu"
        assert len(cluster.made) == 2

    def test_all_jobs_of_a_client_share_one_question(self, cluster: Cluster) -> None:
        gangs = [cluster.gang(a_job(number, nodes=1)) for number in range(8)]
        for gang in gangs:
            gang.step()
        cluster.now_s += 1.0
        for gang in gangs:
            gang.step()
        assert sum(words[:2] == ("get", "pods") for words in cluster.asked) == 1


class TestTheEnd:
    def running(self, cluster: Cluster, nodes: int = 2) -> PodGang:
        gang = cluster.gang(a_job(nodes=nodes))
        gang.step()
        for name in cluster.pods:
            cluster.run(name)
        until(cluster, gang, lambda: len(gang.running()) == nodes)
        return gang

    def test_a_pod_that_vanishes_was_deleted_by_others(self, cluster: Cluster) -> None:
        gang = self.running(cluster)
        cluster.pods.clear()
        end = gang.end(asked=False)
        assert end.state is JobState.EVICTED
        assert "it was deleted from outside of this run" in end.reason

    def test_a_node_that_went_with_it_is_told(self, cluster: Cluster) -> None:
        gang = self.running(cluster)
        cluster.pods.clear()
        cluster.node_ready = "Unknown"
        assert gang.end(asked=False).state is JobState.NODE_LOST

    def test_a_pod_that_runs_on_has_lost_its_connection(self, cluster: Cluster) -> None:
        gang = self.running(cluster, nodes=1)
        end = gang.end(asked=False)
        assert end.state is JobState.NODE_LOST
        assert "the connection to it was lost" in end.reason

    def test_a_pod_that_was_told_to_end_has_lost_nothing(self, cluster: Cluster) -> None:
        gang = self.running(cluster)
        cluster.node_ready = "Unknown"
        assert gang.end(asked=True).state is JobState.COMPLETED
        assert gang.end(asked=False).state is JobState.NODE_LOST

    def test_an_api_server_that_does_not_answer(self, cluster: Cluster) -> None:
        gang = self.running(cluster)
        cluster.answers = False
        assert gang.end(asked=False).state is JobState.UNREACHABLE
        assert not gang.remove()

    def test_a_kill_for_want_of_memory_that_is_reported_late(self, cluster: Cluster) -> None:
        gang = self.running(cluster, nodes=1)
        (name,) = cluster.pods

        def end_by(reason: str) -> None:
            terminated = {"exitCode": 137, "reason": reason}
            status = [{"name": "disttest", "state": {"terminated": terminated}}]
            cluster.pods[name]["status"] = {"phase": "Failed", "containerStatuses": status}

        def sleep(seconds: float) -> None:
            cluster.now_s += seconds
            if cluster.now_s > ended_s + 2:
                end_by("OOMKilled")

        end_by("Error")
        ended_s = cluster.now_s
        gang._sleep = sleep  # the clock of the cluster, on which the reason follows
        assert gang.end(asked=False).state is JobState.OUT_OF_MEMORY

    def test_a_kill_without_a_reason_is_not_waited_for_long(self, cluster: Cluster) -> None:
        gang = self.running(cluster, nodes=1)
        (name,) = cluster.pods
        status = [{"name": "disttest", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]
        cluster.pods[name]["status"] = {"phase": "Failed", "containerStatuses": status}
        ended_s = cluster.now_s
        assert gang.end(asked=False).state is JobState.COMPLETED
        assert cluster.now_s < ended_s + 2 * KUBERNETES_FINAL_S

    def test_everything_is_found_by_its_label(self, cluster: Cluster) -> None:
        gang = self.running(cluster)
        assert gang.remove()
        assert cluster.asked[-1][:3] == (
            "delete",
            "configmaps,pods",
            f"--selector=disttest-job={a_job().name}",
        )


class TestDeclaredNodes:
    @pytest.mark.parametrize(
        ("text", "shape"), [("4x8", (4, 8, 8)), ("4x8x96", (4, 8, 96)), ("2x0x16", (2, 0, 16))]
    )
    def test_a_shape(self, text: str, shape: tuple[int, int, int]) -> None:
        capacity = manifests.declared_capacity(text, "Kubernetes v1")
        assert (capacity.nodes, capacity.gpus_per_node, capacity.cpus_per_node) == shape

    @pytest.mark.parametrize("text", ["", "4", "0x8", "4x0", "4x8x", "4x8x0", "axb", "4x8x96x1"])
    def test_nonsense(self, text: str) -> None:
        with pytest.raises(UsageError, match="is not a shape such as 4x8"):
            manifests.declared_capacity(text, "Kubernetes v1")

    def test_nodes_are_not_looked_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []

        def answer(_kubectl: Kubectl, *words: str, text: str = "") -> str:
            asked.append(words[0])
            return json.dumps({"serverVersion": {"gitVersion": "v1"}})

        monkeypatch.setattr(Kubectl, "call", answer)
        launcher = KubernetesLauncher({}, LauncherOptions(pod_nodes="4x8"))
        assert launcher.capacity().nodes == 4
        assert asked == ["version"]


class TestNodes:
    PLACE = {
        "DISTTEST_POD": "1",
        "DISTTEST_PODS": "2",
        "DISTTEST_POD_GPUS": "2",
        "DISTTEST_POD_HOST": "gpu-7",
        "DISTTEST_POD_ADDRESS": "127.0.0.1",
        "DISTTEST_POD_LAST_WORD": "/dev/termination-log",
    }

    @pytest.mark.parametrize(
        ("environ", "gpus"),
        [
            ({"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, ("GPU-1", "GPU-2")),
            ({"NVIDIA_VISIBLE_DEVICES": "5,6"}, ("0", "1")),  # as the node numbers them
            ({"NVIDIA_VISIBLE_DEVICES": "void"}, ("0", "1")),  # by a CDI device
            ({"NVIDIA_VISIBLE_DEVICES": "all"}, ("0", "1")),
            ({"DISTTEST_POD_GPUS": "0", "NVIDIA_VISIBLE_DEVICES": "all"}, ()),
        ],
    )
    def test_the_gpus_of_a_pod(self, environ: dict[str, str], gpus: tuple[str, ...]) -> None:
        assert find_assignment({**self.PLACE, **environ}).gpus == gpus

    def test_a_pods_place(self) -> None:
        place = find_assignment(self.PLACE)
        assert (place.scheduler, place.node, place.nodes, place.host) == ("kubernetes", 1, 2, "gpu-7")
        assert (place.address, place.interface, place.last_word) == (
            "127.0.0.1",
            "lo",
            "/dev/termination-log",
        )

    def test_capacity_is_what_the_pods_may_use(self) -> None:
        nodes = tuple(
            msgspec.convert(
                {
                    "metadata": {"name": name, "labels": labels},
                    "spec": {"taints": taints, "unschedulable": name == "cordoned"},
                    "status": {
                        "allocatable": {"cpu": "31850m", "nvidia.com/gpu": gpus},
                        "conditions": [{"type": "Ready", "status": "False" if name == "down" else "True"}],
                    },
                },
                type=Node,
            )
            for name, gpus, labels, taints in (
                ("a", "8", {"pool": "x"}, []),
                ("b", "8", {"pool": "x"}, [{"key": "gpu", "effect": "NoSchedule"}]),
                ("tainted", "8", {"pool": "x"}, [{"key": "other", "effect": "NoSchedule"}]),
                ("elsewhere", "8", {}, []),
                ("small", "4", {"pool": "x"}, []),
                ("cordoned", "8", {"pool": "x"}, []),
                ("down", "8", {"pool": "x"}, []),
            )
        )
        raw = {"nodeSelector": {"pool": "x"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
        wanted = WantedPod(spec=msgspec.convert(raw, type=WantedSpec))
        capacity = manifests.capacity_of(nodes, wanted, "nvidia.com/gpu", "Kubernetes v1")
        assert (capacity.nodes, capacity.gpus_per_node, capacity.cpus_per_node) == (2, 8, 31)
        with pytest.raises(SchedulerError, match="none of 1 nodes is ready"):
            manifests.capacity_of(nodes[-1:], wanted, "nvidia.com/gpu", "Kubernetes v1")


class TestCommandLines:
    @pytest.mark.parametrize(
        ("partition", "words"),
        [
            ("", []),
            ("ci", ["--namespace=ci"]),
            ("prod/ci", ["--context=prod", "--namespace=ci"]),
            (
                "arn:aws:eks:eu-1:7:cluster/prod/ci",
                ["--context=arn:aws:eks:eu-1:7:cluster/prod", "--namespace=ci"],
            ),
        ],
    )
    def test_context_and_namespace(self, partition: str, words: list[str]) -> None:
        assert Kubectl({}, LauncherOptions(partition=partition)).command("get") == ["kubectl", *words, "get"]

    def test_complaints_without_kubectls_own_log(self) -> None:
        stderr = 'E1123 02:00:00.1 7 memcache.go:265] "Unhandled"\nThe connection was refused\nThe connection was refused\n'
        assert clean(stderr) == "The connection was refused"
