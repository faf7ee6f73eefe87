"""The launcher of Kubernetes, held to what all launchers have to do, and to what only this one can get wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_credentials import NAMESPACE
from kubernetes_image import IMAGE
from kubernetes_plane import KubernetesPlane
from launcher_conformance import STUB, ExclusiveGPUs, ExitCodes, Heard, LauncherConformance, Make, job

from disttest.extras.cluster.protocol.launcher import JobState, Launcher, LauncherOptions
from disttest.extras.cluster.protocol.wire import NodeReady, TakeJob, encode_order
from disttest.extras.kubernetes.scheduler import KubernetesLauncher


@pytest.fixture
def make(plane: KubernetesPlane, tmp_path: Path) -> Iterator[Make]:
    """A launcher with the rights of the docs' role, whose agents are stubs."""

    def made(mode: str, *values: str, image: str = IMAGE, **options: object) -> Launcher:
        template = tmp_path / "pod.json"
        container = {"name": "disttest", "image": image, "resources": {"requests": {"cpu": "1m"}}}
        template.write_text(
            json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}})
        )
        stub = {"command": ("python", STUB, mode, *values), "pod_template": str(template)}
        chosen = LauncherOptions(**{**stub, **options})
        return KubernetesLauncher({**os.environ, **plane.environment("disttest")}, chosen)

    return made


class TestKubernetes(LauncherConformance):
    """On two kubelets."""


class TestExitCodesOfPods(ExitCodes):
    """The agent's, as its pod tells it."""


class TestGPUsOfPods(ExclusiveGPUs):
    """Eight gangs: a pod takes some seconds. ``--trials 40`` has more."""

    limit_s = 900.0

    @pytest.fixture(autouse=True)
    def _count(self, pytestconfig: pytest.Config) -> None:
        self.gangs = pytestconfig.getoption("--trials") or 8


def test_too_many_gpus_wait_with_the_schedulers_words(make: Make) -> None:
    launched = make("echo").start(job(nodes=1, gpus=9))

    def cancel_when_told(heard: Heard) -> None:
        if "Insufficient nvidia.com/gpu" in launched.describe().reason:
            launched.cancel("told")

    (end,) = Heard(launched).until_end(cancel_when_told).ends
    assert (end.end.state, end.end.reason) == (JobState.CANCELLED, "told")


def ended(launcher: Launcher, **shape: int) -> Heard:
    launched = launcher.start(job(**shape))
    launched.send(encode_order(TakeJob(job=job(**shape))))
    return Heard(launched).until_end()


def test_an_image_that_does_not_exist(make: Make) -> None:
    (end,) = ended(make("echo", image="registry.invalid/nope:1"), nodes=1).ends
    assert end.end.state is JobState.REJECTED
    assert "registry.invalid/nope:1" in end.end.reason
    assert "--image" in end.end.advice


def test_a_command_that_is_not_in_the_image(make: Make) -> None:
    (end,) = ended(make("echo", command=("no-such-agent",)), nodes=1).ends
    assert end.end.state is JobState.REJECTED
    assert "no-such-agent" in end.end.reason


def test_a_namespace_where_nothing_is_allowed(make: Make) -> None:
    (end,) = ended(make("echo", partition="kube-system"), nodes=1).ends
    assert end.end.state is JobState.REJECTED
    assert "cannot create resource" in end.end.reason
    assert "docs/kubernetes.md" in end.end.advice


def test_nodes_that_were_given_back_are_asked_for_again_and_attached_to(
    make: Make, plane: KubernetesPlane
) -> None:
    plane.kubectl("create", "--filename=-", given=json.dumps(_holds_a_gpu("n2")))
    launched = make("exit", "0").start(job(gpus=2))
    launched.send(encode_order(TakeJob(job=job(gpus=2))))

    def make_room(_: Heard) -> None:
        names = [pod["metadata"]["name"] for pod in plane.pods()]
        if "holder" in names and any(name.endswith("-try2") for name in names):
            plane.kubectl("delete", "pod", "holder", f"--namespace={NAMESPACE}")

    heard = Heard(launched, limit_s=300).until_end(make_room)
    (end,) = heard.ends
    assert end.end.state is JobState.COMPLETED, end
    assert {node for node, message in heard.messages if isinstance(message, NodeReady)} == {0, 1}


def _holds_a_gpu(node: str) -> dict[str, object]:
    container = {
        "name": "holder",
        "image": IMAGE,
        "command": ["sleep", "infinity"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder", "namespace": NAMESPACE},
        "spec": spec,
    }
