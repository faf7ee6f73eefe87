"""A job of ARC in kubernetes mode: its container sleeps in a pod, and GitHub's runner executes each step in there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from github_runner import BASH, Runner
from kubernetes_plane import KubernetesPlane

SLEEPS = ("tail", "-f", "/dev/null")
"""What takes the place of the image's own entrypoint."""


class JobPodRunner(Runner):
    """The runner, with a pod that sees its folder at the same path; the container's own PATH counts."""

    def __init__(self, folder: Path, workspace: Path, plane: KubernetesPlane, pod: str) -> None:
        super().__init__(folder, workspace, {"PATH": ""})
        self._exec = ("kubectl", "exec", pod, "--", "sh", "-e")
        self._client = {**os.environ, **plane.environment("admin")}

    def _execute(
        self, script: Path, env: Mapping[str, str], log: Path, cancel_when: Callable[[], bool] | None
    ) -> int:
        assert cancel_when is None, "a runner that is cancelled deletes the pod"
        step = script.with_suffix(".pod.sh")
        step.write_text(self._step_script(script, env))
        with log.open("wb") as out:
            done = subprocess.run(
                [*self._exec, str(step)], env=self._client, stdout=out, stderr=out, check=False, timeout=300
            )
        return done.returncode

    def _step_script(self, script: Path, env: Mapping[str, str]) -> str:
        """The variables stand in a script, since an exec has none."""
        path = "".join(f"{folder}:" for folder in self.path)
        words = [f'"{name}={_quoted(value)}"' for name, value in env.items() if name != "PATH"]
        run = " ".join(("exec env", *words, *BASH, str(script)))
        return f'export PATH="{path}$PATH"\ncd {self.workspace} && {run}\n'


def _quoted(value: str) -> str:
    for character in '\\"$`':
        value = value.replace(character, f"\\{character}")
    return value
