"""Runs on a real Kubernetes: the verdicts are right, whoever ends them, and no pod is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import cluster_programs
import pytest
from cluster_programs import SPAN
from cluster_run import ClusterRun
from documents import blocks, commands
from kubernetes_credentials import NAMESPACE
from kubernetes_image import IMAGE
from kubernetes_lab import KubernetesLab
from kubernetes_plane import KubernetesPlane

from disttest.model import Cause, Outcome, RankEnd


@pytest.fixture(scope="module")
def faults(shared_plane: KubernetesPlane, tmp_path_factory: pytest.TempPathFactory) -> ClusterRun:
    """One run with all faults that end one test and not the run."""
    lab = KubernetesLab(shared_plane, tmp_path_factory.mktemp("faults")).write(
        test_faults=cluster_programs.faults(hang_limit_s=25)
    )
    return lab.on_kubernetes("test_faults.py", *SPAN).wait(240)


class TestFaultsOfOneTest:
    def test_the_run_goes_on_after_each_and_leaves_no_pod(
        self, faults: ClusterRun, plane: KubernetesPlane
    ) -> None:
        assert faults.exit_code == 1, faults.output
        for name in ("test_first[4", "test_last[4", "test_floods[4"):
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

    def test_every_rank_has_its_log_here(self, faults: ClusterRun) -> None:
        for test in faults.run.tests:
            for record in test.final.ranks:
                assert (faults.results / record.log).exists(), record.log


def test_the_suites_pass_over_two_nodes(lab: KubernetesLab) -> None:
    chosen = "smoke or test_objects or test_buffers"
    run = lab.on_kubernetes("smoke", "collectives", "ddp", *SPAN, "--", "-k", chosen).wait(300)
    assert run.exit_code == 0, run.output
    passed = [t for t in run.run.tests if t.final.outcome is Outcome.PASSED]
    spanning = {t.test.suite for t in passed if t.test.world and t.test.world.nodes == 2}
    assert spanning == {"smoke", "collectives", "ddp"}, run.output


def test_what_ranks_print_is_shown_while_they_run(lab: KubernetesLab) -> None:
    lab.write(test_talks=cluster_programs.TALKS)
    run = lab.on_kubernetes("test_talks.py", "-k", "over_nodes", "-s")
    cluster_programs.assert_heard_while_it_runs(run, lab.folder)


def test_the_command_of_the_page(lab: KubernetesLab, namespace: str) -> None:
    """As it stands there; the pod of its file is the tests' own, and of the suite one file is enough."""
    ((typed, _),) = commands(blocks("docs/kubernetes.md", "Run it"))
    assert f" --partition {namespace} " in typed
    lab.write_template(image=IMAGE)
    lab.template.rename(lab.folder / "pod.yaml")
    run = lab.types(typed, DISTTEST_DEVICE="cpu", PYTEST_ADDOPTS="-k test_buffers").wait(300)
    assert run.exit_code == 0, run.output
    assert {t.test.world.nodes for t in run.run.tests if t.test.world} == {2}, run.output


@pytest.fixture
def namespace(plane: KubernetesPlane) -> Iterator[str]:
    """Another one in which runs may make pods; nothing is left in it."""
    plane.kubectl("create", "namespace", "ci")
    rights = ("--clusterrole=admin", f"--serviceaccount={NAMESPACE}:disttest")
    plane.kubectl("create", "rolebinding", "disttest", "--namespace=ci", *rights)
    yield "ci"
    assert plane.kubectl("get", "pods", "--namespace=ci", "--output=name").stdout == ""
    plane.kubectl("delete", "namespace", "ci")


# --- objects and priorities


def test_further_objects_are_there_before_the_pods_and_go_with_the_job(
    lab: KubernetesLab, priority: str
) -> None:
    objects = lab.folder / "objects.yaml"
    objects.write_text(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: DISTTEST_JOB-keys}\nstringData: {OF_THE_JOB: 'yes'}\n"
    )
    lab.write_template(envFrom=[{"secretRef": {"name": "DISTTEST_JOB-keys"}}])
    lab.write(
        test_reads="import os\n\nimport pytest\n\n\n@pytest.mark.world_size()\n"
        "def test_reads(world):\n    assert os.environ['OF_THE_JOB'] == 'yes'\n"
    )
    chosen = ("--job-objects", str(objects), "--priority-class", priority)
    run = lab.on_kubernetes("test_reads.py", *SPAN, *chosen)
    priorities: list[int] = []
    while run.process.poll() is None and not priorities:
        priorities = [pod["spec"]["priority"] for pod in lab.plane.pods()]
        time.sleep(0.1)
    run.wait(240)
    assert run.exit_code == 0, run.output
    assert set(priorities) == {7}
    lab.plane.wait_until_free()
    named = "--field-selector=type=Opaque"
    until = time.monotonic() + 60
    while lab.plane.kubectl("get", "secrets", named, f"--namespace={NAMESPACE}", "--output=name").stdout:
        assert time.monotonic() < until
        time.sleep(0.5)


@pytest.fixture
def priority(plane: KubernetesPlane) -> Iterator[str]:
    """A class of priority 7; and the right to make secrets, which the docs' role lacks."""
    plane.kubectl("create", "priorityclass", "seventh", "--value=7")
    plane.kubectl("create", "role", "keys", "--verb=create", "--resource=secrets", f"--namespace={NAMESPACE}")
    user = f"--serviceaccount={NAMESPACE}:disttest"
    plane.kubectl("create", "rolebinding", "keys", "--role=keys", user, f"--namespace={NAMESPACE}")
    yield "seventh"
    plane.kubectl("delete", "role,rolebinding", "keys", f"--namespace={NAMESPACE}")
    plane.kubectl("delete", "priorityclass", "seventh")


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
