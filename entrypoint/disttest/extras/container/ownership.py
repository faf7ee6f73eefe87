"""Owner of the files that a container writes: that of the workspace, even if the container has to run as root.

Root-owned files in a workspace break the next checkout of a runner (https://github.com/actions/runner/issues/434).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import docker
from docker.types import Mount

from disttest.errors import UsageError
from disttest.extras.container.engine import EngineFacts, engine_errors
from disttest.extras.container.left_containers import PREFIX
from disttest.extras.container.limits import HAND_BACK_S
from disttest.model import Frozen
from disttest.plugins.gpus.leases.shared_folder import SharedFolder

WORKSPACE, OWNER, SINCE = f"{PREFIX}workspace", f"{PREFIX}owner", f"{PREFIX}since"


class Owner(Frozen):
    """A user and a group, by number."""

    uid: int
    gid: int

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"


class HandBack(Frozen):
    """Files that may have to change owners after a container: those below ``workspace`` newer than ``since``."""

    workspace: str
    owner: str
    since: float
    """Seconds since the epoch."""

    def labels(self) -> dict[str, str]:
        """Return the labels by which the next launch can do this after a crash."""
        return {WORKSPACE: self.workspace, OWNER: self.owner, SINCE: f"{self.since:.3f}"}


def hand_back_of(labels: Mapping[str, str]) -> HandBack | None:
    """Read the task from a container's labels; None if there is none."""
    try:
        owner, since = labels[OWNER], float(labels[SINCE])
        workspace = labels[WORKSPACE]
    except (KeyError, ValueError):
        return None
    # Any user of the engine can set labels, and these become arguments of a container that runs as root.
    if not re.fullmatch(r"\d+:\d+", owner) or not workspace.startswith("/"):
        return None
    return HandBack(workspace=workspace, owner=owner, since=since)


# The container runs as the owner of the workspace: files of root break the next checkout on a persistent runner.
# docs/decisions/0034-container-user-is-the-owner.md
def owner_of(path: Path) -> Owner:
    """Return the owner of a path."""
    status = path.stat()
    return Owner(uid=status.st_uid, gid=status.st_gid)


def make_folder(path: Path) -> None:
    """Make a folder and its parents; each belongs to the owner of the folder above it.

    Otherwise a launcher that runs as root would make results that the container's user cannot write.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        # From the top, because each takes the owner of the folder above it.
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            give_to_owner_above(folder)
    except OSError as error:
        raise UsageError(f"cannot create {path}: {error.strerror}") from error


def make_lease_folder(path: Path) -> None:
    """Make a folder for leases, writable by all users, if it does not exist.

    Raises:
        UsageError: it cannot be made, or the existing one is not for leases.
    """
    make_folder(path.parent)
    # The constructor creates the folder for all users, or refuses one that has other things in it.
    is_new = not path.exists()
    SharedFolder(path)
    if is_new:
        give_to_owner_above(path)


def give_to_owner_above(path: Path) -> None:
    """Give a path that root made to the owner of the folder above it."""
    above, own = owner_of(path.parent), owner_of(path)
    # A file of another user has its owner on purpose, and only root may give files away.
    if above != own and own.uid == 0:
        os.chown(path, above.uid, above.gid)


def choose_user(asked: str, *, owner: Owner, facts: EngineFacts) -> str:
    """Choose the container's user: ``uid:gid``, or empty for the image's user.

    Raises:
        UsageError: ``asked`` is not ``auto``, ``image``, a uid or ``uid:gid``.
    """
    if asked == "image":
        return ""
    if asked != "auto":
        if not re.fullmatch(r"\d+(:\d+)?", asked):
            raise UsageError(f"--user {asked!r} is not auto, image, a user's number, or UID:GID")
        return asked
    # Root in a rootless engine is the user of the engine.
    return "0:0" if facts.rootless else str(owner)


def needs_hand_back(user: str, *, owner: Owner, facts: EngineFacts) -> bool:
    """Whether the container may write files of another owner than that of the workspace."""
    # An empty user is that of the image. It counts as another one, which costs one search at most.
    return not facts.rootless and user.split(":")[0] != str(owner.uid)


def hand_back(client: docker.DockerClient, image: str, task: HandBack) -> None:
    """Give files newer than the container that belong to other users to the owner.

    A container does this, since the caller need not be root. It never follows a link.

    Raises:
        EngineError: the engine refused.
    """
    with engine_errors(f"handing files in {task.workspace} back to {task.owner}"):
        helper = client.containers.create(
            image,
            entrypoint=["find"],
            command=[
                # -newerct compares the time of the last status change, which no program can set back, with a
                # time as text. Unpacked archives have old modification times. -xdev leaves out other mounts.
                task.workspace, "-xdev", "-newerct", f"@{task.since:.3f}",
                "!", "-uid", task.owner.split(":")[0],
                "-exec", "chown", "--no-dereference", task.owner, "{}", "+",
            ],
            # Not `volumes`, whose words a colon in the path would split.
            mounts=[Mount(task.workspace, task.workspace, type="bind")],
            user="0:0",
            network_mode="none",
            cap_drop=["ALL"],
            # Without these, root can neither enter private folders of other users nor change owners.
            cap_add=["CHOWN", "DAC_READ_SEARCH", "FOWNER"],
            security_opt=["no-new-privileges"],
        )  # fmt: skip
        try:
            helper.start()
            helper.wait(timeout=HAND_BACK_S)
        finally:
            helper.remove(force=True)
