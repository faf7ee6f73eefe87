"""What a real Kubernetes refuses, and what has to wait there: said in the cluster's words, and no pod is left."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from cluster_programs import SPAN, waits
from kubernetes_lab import KubernetesLab
from kubernetes_plane import KubernetesPlane
from kubernetes_pods import Pods


@pytest.fixture
def lab(lab: KubernetesLab) -> KubernetesLab:
    """With a test that never runs."""
    return lab.write(test_waits=waits())


def message_of(lab: KubernetesLab, *arguments: str, **options: str) -> str:
    """What is said of a test that the infrastructure kept from running."""
    run = lab.on_kubernetes("test_waits.py", *SPAN, *arguments, **options).wait(180)
    assert run.exit_code == 7, run.output
    return run.result("test_waits[4").message


def test_an_image_that_does_not_exist(lab: KubernetesLab) -> None:
    assert "disttest-test/nowhere:1" in message_of(lab, image="disttest-test/nowhere:1")


def test_a_namespace_that_may_not_have_so_many_pods(lab: KubernetesLab) -> None:
    with quota(lab.plane, "pods=1"):
        assert "exceeded quota: small" in message_of(lab, "--queue-limit", "10")


@contextlib.contextmanager
def quota(plane: KubernetesPlane, hard: str) -> Iterator[None]:
    plane.kubectl("create", "quota", "small", f"--hard={hard}")
    try:
        yield
    finally:
        plane.kubectl("delete", "quota", "small")


def test_a_cluster_that_is_full(lab: KubernetesLab, pods: Pods) -> None:
    """Of somebody else's pods, which leave no processor."""
    for node in lab.plane.seen_nodes():
        name, processors = node["metadata"]["name"], node["status"]["allocatable"]["cpu"]
        pods.create(f"other-{name}", ["sleep", "infinity"], node=name, limits={"cpu": processors})
    message = message_of(lab, "--queue-limit", "10")
    assert "queued: still waiting after 10 s (0/2 nodes are available: 2 Insufficient cpu" in message


def test_a_user_who_may_do_nothing(lab: KubernetesLab) -> None:
    run = lab.on_kubernetes("test_waits.py", *SPAN, **lab.plane.environment("stranger")).wait()
    assert run.exit_code == 9, run.output
    assert 'User "stranger" cannot list resource "nodes"' in run.output


def test_a_user_who_may_make_pods_and_not_attach_to_them(lab: KubernetesLab) -> None:
    with rights(lab.plane, "stranger"):
        message = message_of(lab, **lab.plane.environment("stranger"))
    assert "rejected: " in message
    assert 'User "stranger" cannot create resource "pods/attach"' in message
    assert "docs/kubernetes.md" in message


@contextlib.contextmanager
def rights(plane: KubernetesPlane, user: str) -> Iterator[None]:
    """What the docs' role has, apart from ``pods/attach``."""
    verbs = "--verb=create,get,list,delete"
    plane.kubectl("create", "role", "unattached", verbs, "--resource=pods,configmaps,events")
    plane.kubectl("create", "rolebinding", "unattached", "--role=unattached", f"--user={user}")
    plane.kubectl("create", "clusterrolebinding", "looks", "--clusterrole=disttest-nodes", f"--user={user}")
    try:
        yield
    finally:
        plane.kubectl("delete", "role,rolebinding", "unattached")
        plane.kubectl("delete", "clusterrolebinding", "looks")


def test_a_webhook_without_endpoints_is_waited_for(lab: KubernetesLab) -> None:
    lab.write(test_passes="import pytest\n\n@pytest.mark.world_size()\ndef test_passes(world):\n    pass\n")
    with webhook_without_endpoints(lab.plane):
        run = lab.on_kubernetes("test_passes.py", *SPAN)
        run.await_words("waits: Error from server (InternalError)")
    run.wait(240)
    assert run.exit_code == 0, run.output


@contextlib.contextmanager
def webhook_without_endpoints(plane: KubernetesPlane) -> Iterator[None]:
    """A check of new pods by a service that does not exist, as while its own pods are replaced."""
    pods_only = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": "absent.disttest.test",
        "clientConfig": {"service": {"name": "absent", "namespace": "default"}},
        "rules": [pods_only],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "absent"},
        "webhooks": [hook],
    }
    plane.kubectl("create", "-f", "-", given=json.dumps(configuration))
    try:
        yield
    finally:
        plane.kubectl("delete", "validatingwebhookconfiguration", "absent")


def test_an_api_server_that_is_absent(lab: KubernetesLab) -> None:
    configuration = lab.folder / "absent.json"
    configuration.write_text(json.dumps(EMPTY))
    run = lab.on_kubernetes("test_waits.py", *SPAN, KUBECONFIG=str(configuration)).wait()
    assert run.exit_code == 9, run.output
    assert "Kubernetes says: " in run.output
    assert "The API server does not answer" in run.output


EMPTY = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "absent", "cluster": {"server": "https://127.0.0.1:1"}}],
    "contexts": [{"name": "absent", "context": {"cluster": "absent", "user": "absent"}}],
    "users": [{"name": "absent", "user": {}}],
    "current-context": "absent",
}
"""A configuration that leads to a port where no server listens."""


def test_a_memory_limit_that_is_too_small_for_torch(lab: KubernetesLab) -> None:
    lab.write_template(resources={"limits": {"memory": "120Mi"}})
    message = message_of(lab)
    assert "memory" in message, message


def test_a_user_who_may_not_look_at_nodes_declares_them(lab: KubernetesLab) -> None:
    lab.write(test_passes="import pytest\n\n@pytest.mark.world_size()\ndef test_passes(world):\n    pass\n")
    verbs = "--verb=create,get,list,delete"
    resources = "--resource=pods,pods/attach,configmaps,events"
    lab.plane.kubectl("create", "role", "without-nodes", verbs, resources)
    lab.plane.kubectl("create", "rolebinding", "without-nodes", "--role=without-nodes", "--user=stranger")
    try:
        declared = {**lab.plane.environment("stranger"), "DISTTEST_POD_NODES": "2x2x4"}
        run = lab.on_kubernetes("test_passes.py", *SPAN, **declared).wait(180)
    finally:
        lab.plane.kubectl("delete", "role,rolebinding", "without-nodes")
    assert run.exit_code == 0, run.output
