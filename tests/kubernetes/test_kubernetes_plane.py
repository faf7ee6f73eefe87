"""The cluster of the tests itself: what the launcher's tests rely on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes_leftovers import cgroups, remove_dead
from kubernetes_node import wait_until
from kubernetes_plane import KubernetesPlane, is_ready
from kubernetes_pods import LIMIT_S, Pods

of_the_lab = pytest.mark.thorough("the launcher's own tests fail, too, where the cluster does not do this")


def end_of(status: Mapping[str, Any]) -> dict[str, Any]:
    """How the one container of a pod ended."""
    (container,) = status["containerStatuses"]
    ended: dict[str, Any] = container["state"]["terminated"]
    return ended


def test_a_pod_runs_on_each_node_with_this_checkout(pods: Pods) -> None:
    program = "import disttest, os, torch; print(disttest.__file__, os.uname().nodename, torch.ones(2).sum())"
    for node in ("n1", "n2"):
        pods.create(f"on-{node}", ["python", "-c", program], node=node)
    for node in ("n1", "n2"):
        status = pods.await_phase(f"on-{node}", "Succeeded", "Failed")
        said = pods.log(f"on-{node}")
        assert status["phase"] == "Succeeded", said
        package = Path(__file__).parents[2] / "entrypoint" / "disttest" / "__init__.py"
        assert said == f"{package} on-{node} tensor(2.)\n"


@of_the_lab
def test_two_pods_on_two_nodes_reduce_over_gloo(pods: Pods) -> None:
    program = textwrap.dedent("""
        import sys, torch, torch.distributed as dist
        rank, address = int(sys.argv[1]), sys.argv[2]
        dist.init_process_group("gloo", init_method=f"tcp://{address}:29500", rank=rank, world_size=2)
        numbers = torch.tensor([rank + 1.0])
        dist.all_reduce(numbers)
        print(numbers.item())
    """)
    script = 'exec python -c "$0" "$1" "${2:-$(hostname -i)}"'
    pods.create("rank-0", ["sh", "-c", script, program, "0"], node="n1")
    address = str(pods.await_phase("rank-0", "Running")["podIP"])
    pods.create("rank-1", ["sh", "-c", script, program, "1", address], node="n2")
    for name in ("rank-0", "rank-1"):
        assert pods.await_phase(name, "Succeeded", "Failed")["phase"] == "Succeeded", pods.log(name)
        assert pods.log(name).splitlines()[-1] == "3.0"


def test_what_goes_into_exec_comes_out_whole_and_so_does_its_exit_code(
    plane: KubernetesPlane, pods: Pods
) -> None:
    pods.create("echo", ["sleep", "infinity"])
    pods.await_phase("echo", "Running")
    sent = os.urandom(1 << 20).hex().encode()
    done = subprocess.run(
        ["kubectl", "exec", "-i", "echo", "--", "sh", "-c", "cat; exit 7"],
        input=sent,
        capture_output=True,
        env={**os.environ, **plane.environment("admin")},
        timeout=LIMIT_S,
        check=False,
    )
    assert hashlib.sha256(sent).digest() == hashlib.sha256(done.stdout).digest(), done.stderr
    assert done.returncode == 7


def test_no_gpu_is_given_to_two_pods(plane: KubernetesPlane, pods: Pods) -> None:
    names = [f"gpu-{number}" for number in range(4)]
    for name in names:
        pods.create(name, ["sleep", "infinity"], limits={"nvidia.com/gpu": "1"})
    for name in names:
        pods.await_phase(name, "Running")
    told = [plane.kubectl("exec", name, "--", "printenv", "NVIDIA_VISIBLE_DEVICES") for name in names]
    given = sorted(each.stdout.strip() for each in told)
    assert given == ["GPU-n1-0", "GPU-n1-1", "GPU-n2-0", "GPU-n2-1"]


def test_a_container_that_takes_too_much_memory_is_killed_and_said_to_be(pods: Pods) -> None:
    pods.create("greedy", ["python", "-c", "b'x' * (256 << 20)"], limits={"memory": "64Mi"})
    ended = end_of(pods.await_phase("greedy", "Failed"))
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_the_users_may_do_what_they_should(plane: KubernetesPlane) -> None:
    assert plane.kubectl("auth", "can-i", "create", "pods", user="disttest").stdout == "yes\n"
    assert plane.kubectl("auth", "can-i", "delete", "nodes", user="disttest", check=False).returncode == 1
    done = plane.kubectl("get", "pods", user="stranger", check=False)
    assert done.returncode == 1
    assert "Forbidden" in done.stderr


@of_the_lab
def test_a_node_that_is_cut_off_is_noticed_and_comes_back(plane: KubernetesPlane) -> None:
    with plane.cut_off(plane.node("n2")):
        plane.kubectl("wait", "node/n2", "--for=condition=Ready=Unknown", "--timeout=60s", limit_s=90)
    assert [True, True] == [is_ready(node) for node in plane.seen_nodes()]


@of_the_lab
def test_a_pod_goes_on_without_its_kubelet_and_without_the_api_server(
    plane: KubernetesPlane, pods: Pods
) -> None:
    pods.create("lasting", ["sleep", "infinity"], node="n1")
    before = pods.await_phase("lasting", "Running")
    plane.kill_kubelet(plane.node("n1"))
    plane.kill_apiserver()
    assert plane.kubectl("get", "pods", check=False).returncode == 1
    plane.start_apiserver()
    plane.start_kubelet(plane.node("n1"))
    after = pods.await_phase("lasting", "Running")
    ids = [status["containerStatuses"][0]["containerID"] for status in (before, after)]
    assert ids[0] == ids[1]


# --- what is left


def test_a_plane_that_is_killed_ends_with_all_its_processes_and_the_next_one_clears_away_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = Path(__file__).parents[1] / "support"
    process = subprocess.Popen(
        [sys.executable, str(support / "kubernetes_plane.py")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()  # when all is up
    folder = Path(said.split("KUBECONFIG=")[1].split()[0]).parent
    assert len(processes_of(folder)) >= 8
    process.kill()
    process.wait(10)
    wait_until(lambda: not processes_of(folder), "all processes end", lambda: str(processes_of(folder)))
    assert cgroups(folder.name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert remove_dead() == [folder.name]
    assert not folder.exists()
    assert cgroups(folder.name) == []


def processes_of(folder: Path) -> list[str]:
    """The command lines of all processes of the machine that name this folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if folder.name in line]
