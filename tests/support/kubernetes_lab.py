"""Runs of the command on the tests' Kubernetes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster_run import ClusterRun, RunFolder
from kubernetes_image import IMAGE
from kubernetes_plane import KubernetesPlane


class KubernetesLab(RunFolder):
    """Runs things on the cluster, from a folder of its own that pods see, too."""

    def __init__(self, plane: KubernetesPlane, folder: Path) -> None:
        super().__init__(folder, plane.environment("disttest"))
        self.plane = plane
        self.template = folder / "pod.json"
        self.write_template()

    def write_template(self, **container: object) -> None:
        """A pod in which the folder lies where it lies here; more of its container, if wanted."""
        seen = {"name": "lab", "mountPath": str(self.folder)}
        spec = {
            "containers": [{"name": "disttest", "volumeMounts": [seen], **container}],
            "volumes": [{"name": "lab", "hostPath": {"path": str(self.folder)}}],
        }
        self.template.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}))

    def on_kubernetes(self, *arguments: str, image: str = IMAGE, **environ: str) -> ClusterRun:
        """``disttest run --launcher kubernetes`` on the CPU."""
        there = ("--launcher", "kubernetes", "--image", image, "--pod-template", str(self.template))
        return self.start("run", *there, "--device", "cpu", *arguments, **environ)

    def pod_on(self, node: str) -> str:
        """The name of the one pod on a node."""
        (name,) = [p["metadata"]["name"] for p in self.plane.pods() if p["spec"].get("nodeName") == node]
        return str(name)

    def await_pods(self, is_true: Callable[[list[dict[str, Any]]], bool], limit_s: float = 60) -> None:
        """Return when it is true of the pods."""
        deadline = time.monotonic() + limit_s
        while not is_true(pods := self.plane.pods()):
            assert time.monotonic() < deadline, pods
            time.sleep(0.1)
