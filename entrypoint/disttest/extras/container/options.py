"""What a launch can be asked to do. Light: the command's help needs it."""

from __future__ import annotations

from pathlib import Path

from disttest.extras.container.gpus import AUTO
from disttest.model import Frozen

IMAGE = "ghcr.io/org/dist-tests"
DEFAULT_TARGET = {True: "cuda", False: "cpu"}


class LaunchOptions(Frozen):
    """What a launch was asked to do."""

    arguments: tuple[str, ...]
    image: str = ""
    """Empty: the released image of this version."""
    target: str = AUTO
    gpus: str = AUTO
    pull: str = "missing"
    requirements: Path | None = None
    """What the tests import besides; goes into a layer of its own."""
    engine: str = ""
    user: str = AUTO
    workspace: Path = Path()
    working_dir: Path = Path()
    results: Path | None = None
    cache: Path | None = None
    lease_dir: Path | None = None
    mounts: tuple[str, ...] = ()
    """More paths, read-only with ``:ro`` behind them."""
    environment: tuple[str, ...] = ()
    network: str = ""
    read_only: bool = False
    memory_bytes: int = 0
    """0: no limit."""
    pids_limit: int | None = None
    """0: no limit; None: the usual one, if the engine can limit processes."""
    shm_bytes: int = 0
    time_limit_s: float = 0.0
    deadline_s: float = 0.0
