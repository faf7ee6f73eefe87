"""One engine for all tests that need it; the images in it are built once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine import Engine, build_target, ensure_probe, kept_engine
from launched_job import Job
from launching import Launcher, ours
from results_files import check_results_below


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A running engine; of our own unless a variable names one."""
    if host := os.environ.get("DISTTEST_TEST_DOCKER_HOST"):
        yield Engine(host=host)
        return
    with kept_engine() as started:
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
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A checkout that belongs to an ordinary user, as on a runner."""
    # pytest's own folders are for root only; the container's user has to get in.
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    folder = tmp_path / "workspace"
    folder.mkdir()
    if os.getuid() == 0:
        os.chown(folder, 1234, 1234)
    yield folder
    check_results_below(folder)


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


@pytest.fixture(scope="session")
def runner_temp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: the launcher's environment in it is made by the first, and found by the others."""
    return tmp_path_factory.mktemp("runner-temp")


@pytest.fixture
def job(engine: Engine, tmp_path: Path, workspace: Path, probe: str, runner_temp: Path) -> Iterator[Job]:
    yield Job(engine, tmp_path, workspace, probe, runner_temp)
    for container in ours(engine):
        container.remove(force=True)
