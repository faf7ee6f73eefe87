"""Pods and nodes that are lost in the middle of a run on a real Kubernetes: it says who ended them, in the cluster's words."""

from __future__ import annotations

import json

from cluster_programs import assert_lost
from cluster_run import ClusterRun
from kubernetes_lab import KubernetesLab

from disttest.model import Outcome

BUDGET = {
    "apiVersion": "policy/v1beta1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "all"},
    "spec": {
        "minAvailable": 2,
        "selector": {"matchLabels": {"app.kubernetes.io/managed-by": "disttest"}},
    },
}
DRAIN = ("drain", "n2", "--force", "--ignore-daemonsets", "--delete-emptydir-data")


def test_a_pod_that_is_deleted(lab: KubernetesLab, waiting: ClusterRun) -> None:
    lab.plane.kubectl("delete", "pod", lab.pod_on("n2"), "--wait=false")
    assert_lost(waiting.wait(180), "evicted: ", "on node n2: it was deleted from outside of this run")


def test_a_node_that_is_drained_once_a_budget_allows_it(lab: KubernetesLab, waiting: ClusterRun) -> None:
    """To drain is to evict each pod by the API, which a budget of somebody's forbids while it lasts."""
    lab.plane.kubectl("create", "-f", "-", given=json.dumps(BUDGET))
    try:
        refused = lab.plane.kubectl(*DRAIN, "--timeout=6s", check=False)
        assert refused.returncode != 0
        assert "disruption budget" in refused.stderr, refused.stderr
        assert waiting.process.poll() is None
        lab.plane.kubectl("delete", "poddisruptionbudget", "all")
        lab.plane.kubectl(*DRAIN, "--timeout=120s", limit_s=150)
        assert_lost(waiting.wait(180), "evicted: ", "node n2 is drained (cordoned)")
    finally:
        lab.plane.kubectl("delete", "poddisruptionbudget", "all", "--ignore-not-found")
        lab.plane.kubectl("uncordon", "n2")


def test_a_node_that_is_cut_off(lab: KubernetesLab, waiting: ClusterRun) -> None:
    with lab.plane.cut_off(lab.plane.node("n2")):
        waiting.wait(240)
    assert_lost(waiting, "node lost: ", "n2")


def test_a_kubelet_that_is_killed(lab: KubernetesLab, waiting: ClusterRun) -> None:
    """The streams to its node run through it."""
    lab.plane.kill_kubelet(lab.plane.node("n2"))
    try:
        waiting.wait(240)
    finally:
        lab.plane.start_kubelet(lab.plane.node("n2"))
    assert_lost(waiting, "node lost: ")


def test_an_api_server_that_is_killed_and_restarted(lab: KubernetesLab, waiting: ClusterRun) -> None:
    lab.plane.kill_apiserver()
    lab.plane.start_apiserver()
    assert_lost(waiting.wait(240), "the API server")


def test_a_rank_that_takes_too_much_memory(lab: KubernetesLab) -> None:
    lab.write(
        test_greedy="""
            import pytest

            @pytest.mark.world_size(2)
            def test_greedy(world):
                if world.rank == 1:
                    kept = [b"x" * (64 << 20) for _ in range(100)]
        """
    )
    lab.write_template(resources={"limits": {"memory": "2Gi"}})
    run = lab.on_kubernetes("test_greedy.py", "--nodes", "1").wait(240)
    result = run.result("test_greedy[2")
    assert result.outcome is Outcome.ERROR, run.output
    assert "SIGKILL" in result.message or "out of memory" in result.message, result.message
