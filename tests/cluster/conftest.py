"""A real Slurm cluster for all tests here, and a laboratory that runs the command on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_run import ClusterRun, RunFolder
from slurm_cluster import SlurmCluster, slurm_cluster


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[SlurmCluster]:
    """Two nodes with two fake GPUs and eight processors each."""
    with slurm_cluster() as started:
        yield started


@pytest.fixture
def cluster(shared_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, as it is and should be left: nothing allocated, no process of a job on any node."""
    yield shared_cluster
    shared_cluster.wait_until_free()


class ClusterLab(RunFolder):
    """Runs things on the cluster's login node, from a folder of its own."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        super().__init__(folder, cluster.environment(), cluster.command())
        self.cluster = cluster

    def on_slurm(self, *arguments: str, **environ: str) -> ClusterRun:
        """``disttest run --launcher slurm`` on the CPU."""
        return self.start("run", "--launcher", "slurm", "--device", "cpu", *arguments, **environ)


@pytest.fixture
def lab(cluster: SlurmCluster, tmp_path: Path) -> Iterator[ClusterLab]:
    made = ClusterLab(cluster, tmp_path)
    yield made
    made.stop()
