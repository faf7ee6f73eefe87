"""A real Slurm cluster for all tests here, and a laboratory that runs the command on it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from results_files import check_results_below
from slurm_cluster import SlurmCluster, slurm_cluster

from disttest.model import TestResult
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events


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


class ClusterRun:
    """A run of the command on the cluster's login node."""

    def __init__(self, process: subprocess.Popen[str], results: Path) -> None:
        self.process = process
        self.results = results
        self.output = ""

    def wait(self, timeout_s: float = 120) -> ClusterRun:
        self.output, _ = self.process.communicate(timeout=timeout_s)
        check_results_below(self.results)
        return self

    @property
    def exit_code(self) -> int:
        assert self.process.returncode is not None
        return self.process.returncode

    @property
    def run(self) -> RunResult:
        return fold(read_events(self.results / FILE_NAME))

    def result(self, name: str) -> TestResult:
        found = [t for t in self.run.tests if f"::{name}" in t.test.nodeid]
        assert len(found) == 1, f"{name}: {[t.test.nodeid for t in self.run.tests]}\n{self.output}"
        return found[0].final

    def await_file(self, path: Path, limit_s: float = 90) -> str:
        """What a rank writes when it is where a test wants it."""
        deadline = time.monotonic() + limit_s
        while not (path.exists() and path.read_text()):
            assert self.process.poll() is None, self.wait().output
            assert time.monotonic() < deadline, f"no {path}"
            time.sleep(0.05)
        return path.read_text()


class ClusterLab:
    """Runs things on the cluster, from a folder of its own."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def write(self, **files: str) -> ClusterLab:
        for name, source in files.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        return self

    def start(self, *arguments: str, **environ: str) -> ClusterRun:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DISTTEST_", "PYTEST_", "SLURM_"))}
        paths = os.pathsep.join(p for p in sys.path if p)
        process = subprocess.Popen(
            self.cluster.command(sys.executable, "-m", "disttest", *arguments),
            cwd=self.folder,
            env={**clean, "PYTHONPATH": paths, "COLUMNS": "200", **self.cluster.environment(), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.started.append(process)
        return ClusterRun(process, self.folder / "results")

    def on_slurm(self, *arguments: str, **environ: str) -> ClusterRun:
        """``disttest run --launcher slurm`` on the CPU."""
        return self.start("run", "--launcher", "slurm", "--device", "cpu", *arguments, **environ)


@pytest.fixture
def lab(cluster: SlurmCluster, tmp_path: Path) -> Iterator[ClusterLab]:
    made = ClusterLab(cluster, tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
            process.kill()
