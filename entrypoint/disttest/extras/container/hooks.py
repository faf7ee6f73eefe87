"""Hooks of ``disttest launch``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.extras.container.limits import PIDS_LIMIT
from disttest.hookspecs import hookimpl
from disttest.options.option import IN_CONTAINER, Option, rows_of
from disttest.options.values import AUTO, BYTES, SECONDS, SWITCH, WHOLE, one_of, path, text

if TYPE_CHECKING:
    import click


_launch = rows_of("launch")
_launched = IN_CONTAINER
CONTAINED = "set in-place to never, or leave the input out"
INSTALLED = (
    "install in a step before or in the script of input setup, or build an image for the job (docs/image.md)"
)

OPTIONS = (
    _launch(
        "image",
        text("NAME"),
        "Image to start.",
        default="",
        otherwise="the released one of this version",
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "target",
        one_of(AUTO, "cpu", "cuda", "full"),
        "Build of the released image.",
        default=AUTO,
        inputs=_launched,
    ),
    _launch(
        "gpus",
        text("CHOICE"),
        "GPUs of the container: auto, all, none, a count, UUIDs, or device=INDEX.",
        default=AUTO,
        inputs=_launched,
    ),
    _launch(
        "pull",
        one_of("missing", "always", "never"),
        "When to pull the image.",
        default="missing",
        inputs=_launched,
    ),
    _launch(
        "requirements",
        path("FILE"),
        "Install this requirements file into a layer on the image, once; the image's torch stays.",
        outside_container=INSTALLED,
        inputs=("run", "plan"),
    ),
    _launch(
        "project",
        text("DIR[EXTRAS]"),
        "First install the project in this folder and its requirements into the image: . or .[test].",
        default="",
        outside_container=INSTALLED,
        inputs=("run", "plan"),
    ),
    _launch(
        "engine",
        text("ADDRESS"),
        "Address of the container engine.",
        default="",
        otherwise="DOCKER_HOST, then the usual places",
        inputs=_launched,
    ),
    _launch(
        "user",
        text("CHOICE"),
        "User of the container: auto (the workspace's owner), image, or UID:GID.",
        default=AUTO,
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "workspace",
        path("DIR"),
        "Folder to mount.",
        otherwise="GITHUB_WORKSPACE or the current folder",
        inputs=(),
    ),
    _launch(
        "workdir",
        path("DIR"),
        "Working directory in the container.",
        default=Path(),
        otherwise="the current folder",
        inputs=(),
    ),
    _launch("results", path("DIR"), "Results directory, on the host.", inputs=("run",)),
    _launch("cache", path("DIR"), "Folder for caches that outlive the container.", inputs=_launched),
    _launch(
        "lease-dir",
        path("DIR"),
        "Folder in which the runners of this host lease GPUs.",
        inputs=_launched,
    ),
    _launch(
        "mount",
        text("PATH[:ro]"),
        "Further folder of the host to mount.",
        many=True,
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "env",
        text("NAME[=VALUE]"),
        "Variables for the container, one NAME or NAME=VALUE a line.",
        many=True,
        secret=True,
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "network",
        text("NAME"),
        "Network of the container, such as none or host.",
        default="",
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "read-only",
        SWITCH,
        "Mount the image read-only.",
        default=False,
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "memory",
        BYTES,
        "Memory limit of the container, such as 16g; it gets no swap.",
        default=0,
        otherwise="no limit",
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "pids-limit",
        WHOLE,
        "Most processes and threads of the container; 0 for no limit.",
        otherwise=f"{PIDS_LIMIT}",
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "shm-size",
        BYTES,
        "Size of /dev/shm, such as 8g.",
        default=0,
        otherwise="half of the memory",
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "time-limit",
        SECONDS,
        "Time limit of the container, even without a launcher.",
        default=0.0,
        otherwise="six hours, or a minute more than the deadline",
        outside_container=CONTAINED,
        inputs=_launched,
    ),
    _launch(
        "deadline", SECONDS, "Time limit of the run inside.", default=0.0, otherwise="none", inputs=("run",)
    ),
    _launch(
        "dry-run",
        SWITCH,
        "Print the launch as JSON, and start nothing.",
        default=False,
        inputs=(),
    ),
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Options of the command."""
    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest launch``."""
    from disttest.extras.container.command import launch

    group.add_command(launch)


@hookimpl
def disttest_reports_written(results: Path) -> None:
    """Hand the results over if this is root in the image."""
    from disttest.options.environment import environment

    if environment().get("DISTTEST_IMAGE") and os.geteuid() == 0:
        _give_to_workspace_owner(results)


def _give_to_workspace_owner(results: Path) -> None:
    """Give the results of root to the owner of the workspace, whose next checkout has to remove them."""
    owner = Path.cwd().stat()
    for folder in (results, Path(".pytest_cache")):
        for each in (folder, *folder.rglob("*")):
            with contextlib.suppress(OSError):
                # A link is changed itself: a test may have made it, and it may lead out of the results.
                os.chown(each, owner.st_uid, owner.st_gid, follow_symlinks=False)
