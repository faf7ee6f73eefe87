"""A job whose steps use the action, on an emulated runner with the test's engine."""

from __future__ import annotations

import os
from pathlib import Path

from engine import ROOT, Engine
from github_runner import ActionResult, Runner


class Job:
    """A job on a runner whose engine is the test's."""

    def __init__(self, engine: Engine, folder: Path, workspace: Path, image: str, temp: Path) -> None:
        environment = {
            name: value
            for name, value in engine.environment().items()
            if not name.startswith(("GITHUB_", "DISTTEST_", "PYTHON"))
        }
        environment |= {
            "GITHUB_RUN_ID": "7",
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_JOB": "t",
            "RUNNER_NAME": "r",
        }
        self.runner = Runner(folder, workspace, environment, temp=temp)
        self.engine, self.workspace, self.image = engine, workspace, image

    def run(self, **inputs: object) -> ActionResult:
        cancel_when = inputs.pop("cancel_when", None)
        given = {name.replace("_", "-"): str(value) for name, value in inputs.items()}
        return self.runner.run_action(
            ROOT, {"image": self.image, "pull": "never", **given}, cancel_when=cancel_when
        )

    def script(self, text: str) -> str:
        (self.workspace / "program.py").write_text(text)
        return "program.py"


def put_on_path(job: Job, folder: Path, does: str = 'echo "in place: $1 $DISTTEST_STEP_MODE"') -> None:
    folder.mkdir()
    (folder / "disttest").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "disttest").chmod(0o755)
    job.runner.environment["PATH"] = f"{folder}:{os.environ['PATH']}"
