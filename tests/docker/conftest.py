"""One engine for all tests that need it; the images in it are built once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from engine import CACHE, ROOT, Engine, build_target, ensure_probe, own_engine

WAIT_S = 60.0


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A running engine; of our own unless a variable names one."""
    if host := os.environ.get("DISTTEST_TEST_DOCKER_HOST"):
        yield Engine(host=host)
        return
    with own_engine(CACHE / "data") as started:
        yield started


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """The real Dockerfile's target ``cpu``."""
    return build_target(engine, "cpu")


@pytest.fixture(scope="session")
def probe(engine: Engine) -> str:
    """A small image whose ``disttest`` runs a Python file: for what the launcher does itself."""
    return ensure_probe(engine)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A checkout that belongs to an ordinary user, as on a runner."""
    # pytest's own folders are for root only; the container's user has to get in.
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    folder = tmp_path / "workspace"
    folder.mkdir()
    if os.getuid() == 0:
        os.chown(folder, 1234, 1234)
    return folder


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


@pytest.fixture
def launcher(engine: Engine, workspace: Path) -> Iterator[Launcher]:
    made = Launcher(engine, workspace)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
    for container in ours(engine):
        container.remove(force=True)


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
