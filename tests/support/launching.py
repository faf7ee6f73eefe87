"""Runs ``disttest launch`` against a test's engine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engine import ROOT, Engine

WAIT_S = 60.0


class Launcher:
    """Runs ``disttest launch`` as a user would, against the test's engine."""

    def __init__(self, engine: Engine, workspace: Path) -> None:
        self.engine = engine
        self.workspace = workspace
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start it; standard output and error are pipes."""
        environment = {**self.engine.environment(), "PYTHONPATH": str(ROOT / "entrypoint"), **(env or {})}
        environment.pop("GITHUB_WORKSPACE", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "disttest", "launch", *arguments],
            cwd=self.workspace,
            env=environment | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(
        self, *arguments: str, env: dict[str, str] | None = None, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.start(*arguments, env=env)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def script(self, text: str, name: str = "program.py") -> str:
        """A Python file in the workspace, for the probe image."""
        (self.workspace / name).write_text(text)
        return name


def ours(engine: Engine) -> list:
    """Containers of launches, running or not."""
    return engine.client().containers.list(all=True, filters={"label": "io.disttest.launch=1"})


def wait_until(holds: Callable[[], object], what: str, limit_s: float = WAIT_S) -> None:
    """Wait for an event that another process brings about."""
    give_up_at = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > give_up_at:
            pytest.fail(f"not within {limit_s:.0f} s: {what}")
        time.sleep(0.02)


def copy_image(name: str, have: Engine, want: Engine, folder: Path) -> None:
    """Give an image of one engine to another one."""
    archive = folder / "image.tar"
    have.docker("save", "-o", str(archive), name)
    want.docker("load", "-i", str(archive))
