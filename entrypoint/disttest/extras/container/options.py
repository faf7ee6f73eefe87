"""Options of a launch as data. A light module, since the command's help imports it."""

from __future__ import annotations

from pathlib import Path

from disttest.extras.container.gpus import AUTO
from disttest.model import Frozen

IMAGE = "ghcr.io/org/dist-tests"
DIGESTS: dict[str, str] = {}
"""Target -> digest of its image; a release writes this line (tools/release.py), so that a pinned action starts one image."""
DEFAULT_TARGET = {True: "cuda", False: "cpu"}


class LaunchOptions(Frozen):
    """Options of a launch."""

    arguments: tuple[str, ...]
    image: str = ""
    """Empty for the released image of this version."""
    target: str = AUTO
    gpus: str = AUTO
    pull: str = "missing"
    requirements: Path | None = None
    """Additional requirements of the tests, installed in a layer on the image."""
    project: str = ""
    """The user's own project as ``DIR[EXTRAS]``, installed in a layer on the image."""
    engine: str = ""
    user: str = AUTO
    workspace: Path = Path()
    working_dir: Path = Path()
    results: Path | None = None
    cache: Path | None = None
    lease_dir: Path | None = None
    mounts: tuple[str, ...] = ()
    """Additional paths; ``:ro`` at the end makes them read-only."""
    environment: tuple[str, ...] = ()
    network: str = ""
    read_only: bool = False
    memory_bytes: int = 0
    """0 for no limit."""
    pids_limit: int | None = None
    """0 for no limit; None for the default, if the engine can limit processes."""
    shm_bytes: int = 0
    time_limit_s: float = 0.0
    deadline_s: float = 0.0
