"""What a plane leaves that no namespace takes along: its folder and its control groups; also those of planes that were killed.

A plane holds a lock on its folder as long as it lives: whose lock can be had is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "dt-kube-"
CONTROLLERS = Path("/sys/fs/cgroup")
PROCESSES_END_S = 20.0


@contextlib.contextmanager
def plane_folder() -> Iterator[Path]:
    """A folder for a plane, whose name is that of its control groups; both are removed at the end."""
    remove_dead()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _make_cgroups(folder.name)
        try:
            yield folder
        finally:
            _remove(folder)


def remove_dead() -> list[str]:
    """Remove what planes have left that were killed; the names of those."""
    dead = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
            dead.append(folder.name)
    return dead


def cgroups(name: str) -> list[Path]:
    """The control groups of a plane: one below each controller."""
    return [path for path in CONTROLLERS.glob(f"*/{name}") if path.is_dir()]


def _make_cgroups(name: str) -> None:
    for root in (path for path in CONTROLLERS.iterdir() if path.is_mount()):
        for group in (root / name, *(root / name / node for node in ("n1", "n2"))):
            group.mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):  # a new one has none, and takes no process
                if (group / file).exists():
                    (group / file).write_text((group.parent / file).read_text())


def _remove(folder: Path) -> None:
    for group in cgroups(folder.name):
        _remove_cgroup(group)
    held = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mounted = [path for path in held if path.startswith(f"{folder}/")]
    assert not mounted, f"still mounted: {mounted}"
    shutil.rmtree(folder)


def _remove_cgroup(group: Path) -> None:
    """Remove it from the leaves up; those that were killed a moment ago leave it soon."""
    deadline = time.monotonic() + PROCESSES_END_S
    for path, _, _ in os.walk(group, topdown=False):
        while True:
            try:
                os.rmdir(path)
                break
            except FileNotFoundError:
                break
            except OSError:
                assert time.monotonic() < deadline, (
                    f"{path} holds {(Path(path) / 'cgroup.procs').read_text()}"
                )
                time.sleep(0.02)
