"""Pods of a test's own on its Kubernetes, beside those of runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kubernetes_image import IMAGE
from kubernetes_plane import KubernetesPlane

LIMIT_S = 120.0
_used: set[str] = set()
"""Names of all pods of this session."""


class Pods:
    """Pods of a test; they go with it."""

    def __init__(self, plane: KubernetesPlane) -> None:
        self.plane = plane
        self.names: list[str] = []

    def create(
        self,
        name: str,
        command: Sequence[str],
        *,
        node: str = "",
        limits: Mapping[str, str] = MappingProxyType({}),
        mounts: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> str:
        """A pod with one container that runs a command.

        Args:
            name: the pod's.
            command: the container's.
            node: the one that it is for; empty: any.
            limits: resources, in the API's notation.
            mounts: path in the container -> the volume that is there, as the API has it.
        """
        volumes = {f"volume-{number}": volume for number, volume in enumerate(mounts.values())}
        container = {
            "name": "main",
            "image": IMAGE,
            "command": list(command),
            "resources": {"limits": dict(limits)},
            "volumeMounts": [
                {"name": volume, "mountPath": path} for volume, path in zip(volumes, mounts, strict=True)
            ],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
                "volumes": [{"name": volume, **source} for volume, source in volumes.items()],
                **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            },
        }
        # A pod that is deleted by force is gone from the API before its containers end. An exec into the next pod of
        # that name can then reach the old one and fail with "Error from server:" (3 of 181 did).
        assert name not in _used, f"a test before this one had a pod {name}: choose another name"
        _used.add(name)
        self.names.append(name)
        self.plane.kubectl("create", "-f", "-", given=json.dumps(pod))
        return name

    def await_phase(self, name: str, *phases: str) -> dict[str, Any]:
        """The status of a pod that has reached one of these phases."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            status: dict[str, Any] = next(
                pod["status"] for pod in self.plane.pods() if pod["metadata"]["name"] == name
            )
            if status.get("phase") in phases:
                return status
            assert time.monotonic() < deadline, f"{status}\n{self.plane.logs()}"
            time.sleep(0.1)

    def log(self, name: str) -> str:
        return self.plane.kubectl("logs", name).stdout
