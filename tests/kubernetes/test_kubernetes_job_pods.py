"""The action in a job's own pod, as ARC's kubernetes mode has it: no engine, no entrypoint, each step executed in place."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from github_runner import ActionResult
from kubernetes_image import ROOT
from kubernetes_job_pod import SLEEPS, JobPodRunner
from kubernetes_plane import KubernetesPlane
from kubernetes_pods import Pods

MIB = 1 << 20


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The repository of examples/arc."""
    return Path(shutil.copytree(ROOT / "examples" / "arc", tmp_path / "work"))


def run_in(plane: KubernetesPlane, pod: str, checkout: Path) -> ActionResult:
    """The step of arc.yml, in a pod that runs."""
    runner = JobPodRunner(checkout.parent, checkout, plane, pod)
    inputs = {"suite": "tests", "in-place": "always", "device": "cpu", "results": "disttest-results"}
    done = runner.run_action(ROOT, inputs)
    assert done.exit_code == 0, done.log
    assert done.steps["place"].outputs["mode"] == "in-place"
    assert (done.outputs["conclusion"], done.outputs["passed"]) == ("success", "1"), done.log
    assert Path(done.outputs["junit"]) == checkout / "disttest-results" / "junit.xml"
    return done


def shared_memory(checkout: Path) -> int:
    """Bytes of it that the run has found."""
    results: dict[str, Any] = json.loads((checkout / "disttest-results" / "results.json").read_text())
    return int(results["hardware"]["shm"])


def here(folder: Path) -> dict[str, dict[str, Any]]:
    """A folder that a pod has where it is here."""
    return {str(folder): {"hostPath": {"path": str(folder)}}}


def test_a_job_runs_in_place_in_64_mib_of_shared_memory(
    plane: KubernetesPlane, pods: Pods, checkout: Path
) -> None:
    """What every container has whose pod template does not say otherwise."""
    pods.create("plain-job", SLEEPS, mounts=here(checkout.parent))
    pods.await_phase("plain-job", "Running")
    done = run_in(plane, "plain-job", checkout)
    assert "passed" in done.summary
    assert shared_memory(checkout) == 64 * MIB


def test_the_pages_pod_template_gives_gpus_and_shared_memory(
    plane: KubernetesPlane, pods: Pods, checkout: Path
) -> None:
    page = (ROOT / "docs" / "runners.md").read_text()
    block = re.search(r"# the job's pod\n(.*?)```", page, re.DOTALL)
    assert block is not None
    spec = yaml.safe_load(block[1])["spec"]
    (container,) = spec["containers"]
    volumes = {volume.pop("name"): volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    limits = {name: str(count) for name, count in container["resources"]["limits"].items()}
    pods.create("sized-job", SLEEPS, limits=limits, mounts={**here(checkout.parent), **mounts})
    pods.await_phase("sized-job", "Running")
    run_in(plane, "sized-job", checkout)
    assert shared_memory(checkout) > 64 * MIB
    granted = plane.kubectl("exec", "sized-job", "--", "printenv", "NVIDIA_VISIBLE_DEVICES").stdout
    uuids = sorted(granted.strip().split(","))  # the kubelet takes them from a set
    assert re.fullmatch(r"GPU-(n\d)-0,GPU-\1-1", ",".join(uuids)), granted
