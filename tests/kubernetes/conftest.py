"""A real Kubernetes for all tests here, and a laboratory that runs the command on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_lab import KubernetesLab
from kubernetes_plane import KubernetesPlane, kubernetes_plane


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
