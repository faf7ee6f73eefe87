"""A real Kubernetes for all tests here, and a laboratory that runs the command on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_programs import SPAN, waits
from cluster_run import ClusterRun
from kubernetes_lab import KubernetesLab
from kubernetes_plane import KubernetesPlane, kubernetes_plane
from kubernetes_pods import Pods


@pytest.fixture(scope="session")
def shared_plane() -> Iterator[KubernetesPlane]:
    """Two nodes with two fake GPUs each."""
    with kubernetes_plane() as started:
        yield started


@pytest.fixture
def plane(shared_plane: KubernetesPlane) -> Iterator[KubernetesPlane]:
    """The cluster, as it is and should be left: no pod in the namespace of the tests, whatever its state."""
    shared_plane.wait_for_nodes()
    yield shared_plane
    shared_plane.wait_until_free()


@pytest.fixture
def lab(plane: KubernetesPlane, tmp_path: Path) -> Iterator[KubernetesLab]:
    made = KubernetesLab(plane, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def waiting(lab: KubernetesLab) -> ClusterRun:
    """A run whose ranks are in a loop of collectives over both nodes."""
    lab.write(test_waits=waits(limit_s=120, steps=1200))
    run = lab.on_kubernetes("test_waits.py", *SPAN, DISTTEST_SILENCE_LIMIT="20")
    run.await_file(lab.folder / "here", limit_s=240)
    return run


@pytest.fixture
def pods(plane: KubernetesPlane) -> Iterator[Pods]:
    made = Pods(plane)
    yield made
    if made.names:
        plane.kubectl("delete", "pod", "--ignore-not-found", "--grace-period=0", "--force", *made.names)
