"""Runs on a real Kubernetes, and what can go wrong in one: the verdict is right, and no pod is left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest
from cluster_run import ClusterRun
from kubernetes_lab import KubernetesLab
from kubernetes_plane import KubernetesPlane

from disttest.model import Cause, Outcome, RankEnd

SPAN = ("--nodes", "2", "--world-sizes", "4")

FAULTS = """
    import os, signal, subprocess, time
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size()

    def test_first(world):
        assert dist.get_world_size() == 4

    def test_raises_on_the_other_node(world):
        if world.rank == 2:
            raise ValueError("boom")
        dist.barrier()

    def test_crashes(world):
        if world.rank == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        dist.barrier()

    @pytest.mark.timeout(25)
    def test_hangs(world):
        if world.rank == 2:
            while True:
                time.sleep(0.1)
        dist.all_reduce(torch.ones(2))

    def test_last(world):
        x = torch.full((2,), float(world.rank))
        dist.all_reduce(x)
        assert x[0] == 6
        assert os.environ["GROUP_RANK"] == str(world.rank // 2)
"""

WAITS = """
    import time
    from pathlib import Path
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(4)

    def test_before(world):
        dist.barrier()

    @pytest.mark.timeout(120)
    def test_waits(world):
        dist.barrier()
        if world.rank == 0:
            Path("here").write_text("here")
        for _ in range(1200):
            dist.all_reduce(torch.ones(1))
            time.sleep(0.1)

    def test_after(world):
        pass
"""


@pytest.fixture(scope="module")
def faults(shared_plane: KubernetesPlane, tmp_path_factory: pytest.TempPathFactory) -> ClusterRun:
    """One run with all faults that end one test and not the run."""
    lab = KubernetesLab(shared_plane, tmp_path_factory.mktemp("faults")).write(test_faults=FAULTS)
    return lab.on_kubernetes("test_faults.py", *SPAN).wait(240)


class TestFaultsOfOneTest:
    def test_the_run_goes_on_after_each_and_leaves_no_pod(
        self, faults: ClusterRun, plane: KubernetesPlane
    ) -> None:
        assert faults.exit_code == 1, faults.output
        for name in ("test_first[4", "test_last[4"):
            assert faults.result(name).outcome is Outcome.PASSED, faults.output
        assert {r.node for r in faults.result("test_last[4").ranks} == {"n1", "n2"}
        plane.wait_until_free()

    def test_an_exception_names_rank_and_node(self, faults: ClusterRun) -> None:
        result = faults.result("test_raises_on_the_other_node[4")
        assert (result.outcome, result.culprit, result.cause) == (Outcome.FAILED, 2, Cause.TEST)
        assert result.message.startswith("rank 2 of 4 failed: ValueError: boom [rank 2 is on node n")

    def test_a_crash_names_rank_and_node_and_ends_the_others(self, faults: ClusterRun) -> None:
        result = faults.result("test_crashes[4")
        assert (result.outcome, result.culprit) == (Outcome.ERROR, 3)
        assert "rank 3 of 4 was killed by SIGSEGV" in result.message
        assert result.ranks[3].end is RankEnd.SIGNALLED

    def test_a_hang_names_who_never_came_and_where_it_was(self, faults: ClusterRun) -> None:
        result = faults.result("test_hangs[4")
        assert result.outcome is Outcome.FAILED
        assert result.message.startswith("rank 2 never joined all_reduce"), result.message
        assert all(record.hung and record.stacks for record in result.ranks)


@pytest.mark.parametrize("suite", ["smoke", "collectives", "ddp"])
def test_a_suite_passes_over_two_nodes(lab: KubernetesLab, suite: str) -> None:
    chosen = "smoke or test_objects or test_buffers"
    run = lab.on_kubernetes(suite, *SPAN, "--", "-k", chosen).wait(300)
    assert run.exit_code == 0, run.output
    passed = [t for t in run.run.tests if t.final.outcome is Outcome.PASSED]
    assert any(t.test.world and t.test.world.nodes == 2 for t in passed), run.output


# --- a pod or a node that is lost


@pytest.fixture
def waiting(lab: KubernetesLab) -> ClusterRun:
    """A run whose ranks are in a loop of collectives over both nodes."""
    lab.write(test_waits=WAITS)
    run = lab.on_kubernetes("test_waits.py", *SPAN, "--silence-limit", "20")
    run.await_file(lab.folder / "here", limit_s=240)
    return run


def assert_lost(run: ClusterRun, *words: str) -> None:
    """The test that ran is an infrastructure error in these words; those before it count."""
    assert run.exit_code == 7, run.output
    assert run.result("test_before[4").outcome is Outcome.PASSED
    result = run.result("test_waits[4")
    assert (result.outcome, result.cause) == (Outcome.ERROR, Cause.INFRASTRUCTURE), result.message
    for word in words:
        assert word in result.message, result.message


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


# --- the client


def test_a_client_that_is_killed_leaves_nothing(lab: KubernetesLab, waiting: ClusterRun) -> None:
    os.kill(waiting.process.pid, signal.SIGKILL)
    lab.await_pods(lambda pods: all(pod["status"]["phase"] in ("Failed", "Succeeded") for pod in pods))
    lab.start("cluster-clean", "--launcher", "kubernetes").wait()
    lab.await_pods(lambda pods: not pods)


def test_a_cancelled_run_writes_its_reports(lab: KubernetesLab, waiting: ClusterRun) -> None:
    os.kill(waiting.process.pid, signal.SIGTERM)
    waiting.wait(180)
    assert waiting.exit_code == 128 + signal.SIGTERM, waiting.output
    assert "cancelled" in waiting.result("test_waits[4").message
    assert (waiting.results / "junit.xml").exists()
    lab.plane.wait_until_free()


# --- what is refused, or has to wait


def test_an_image_that_does_not_exist(lab: KubernetesLab) -> None:
    lab.write(test_waits=WAITS)
    run = lab.on_kubernetes("test_waits.py", *SPAN, image="disttest-test/nowhere:1").wait(180)
    assert run.exit_code == 7, run.output
    assert "disttest-test/nowhere:1" in run.result("test_waits[4").message


def test_a_namespace_that_may_not_have_so_many_pods(lab: KubernetesLab) -> None:
    lab.write(test_waits=WAITS)
    with quota(lab.plane, "pods=1"):
        run = lab.on_kubernetes("test_waits.py", *SPAN, "--queue-limit", "10").wait(180)
    assert run.exit_code == 7, run.output
    assert "exceeded quota: small" in run.result("test_waits[4").message


@contextlib.contextmanager
def quota(plane: KubernetesPlane, hard: str) -> Iterator[None]:
    plane.kubectl("create", "quota", "small", f"--hard={hard}")
    try:
        yield
    finally:
        plane.kubectl("delete", "quota", "small")
