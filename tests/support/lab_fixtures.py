"""Gives each test a laboratory of its own, and sees to it that nothing is left of what ran there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from forked_runs import server_pids
from lab import Lab
from results_files import check_results_below

from disttest.host.descendants import children_of
from disttest.host.process import adopt_orphans


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.fixture(scope="module")
def nothing_left():
    """Nothing of the module's runs lives on: no process, no shared memory. (Its own children are adopted here.)"""
    adopt_orphans()
    before, shm = children_of(), shared_memory()
    yield
    left = {pid: psutil.Process(pid).cmdline() for pid in children_of() - before - server_pids()}
    adopt_orphans(enabled=False)
    assert not left, f"processes are left: {left}"
    files = shared_memory() - shm
    assert not files, f"left in shared memory: {sorted(files)}"


def _may_fork(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("forked_runs") is not None


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path, nothing_left) -> Iterator[Lab]:
    yield Lab(tmp_path, forks=_may_fork(request))
    check_results_below(tmp_path)


@pytest.fixture(scope="module")
def module_lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nothing_left
) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    yield Lab(folder, forks=_may_fork(request))
    check_results_below(folder)
