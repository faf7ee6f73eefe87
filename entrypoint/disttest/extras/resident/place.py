"""File names of a resident parent, as strings, so that a process that only looks for one imports little.

The name includes everything that a process inherits and cannot hand over to a fork of another one: user, limits,
cgroup, namespaces, processors. A command in other circumstances therefore has a parent of its own, and two shells with
different limits do not replace each other's parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import stat
from collections.abc import Iterator, Mapping

_INHERITED = frozenset(
    {
        *("Umask", "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"),
        *("Seccomp", "Cpus_allowed", "Mems_allowed", "SigBlk"),
    }
)
"""Lines of ``/proc/self/status`` that a child inherits from its parent."""
_SET_BY_THE_COMMAND = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_OWN = "/proc/self"


def folder_for(environ: Mapping[str, str]) -> str:
    """Return the folder of all files of this user's parents."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    # A container may inherit the variable without the folder.
    if runtime and os.path.isdir(runtime):
        return os.path.join(runtime, "disttest")
    return f"/tmp/disttest-{os.getuid()}"  # noqa: S108 - make_private() refuses a folder of another user


def is_private(folder: str) -> bool:
    """Whether no other user can listen on a socket in the folder.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    facts = os.lstat(folder)
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def name_for(tests: str) -> str:
    """Return the stem of the file names for a folder of tests and for commands in the circumstances of this process."""
    identity = "\n".join([tests, *_circumstances()])
    return hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:16]


@contextlib.contextmanager
def short(path: str) -> Iterator[str]:
    """Yield a short name of a socket: an address of unix(7) has room for 107 characters."""
    # https://man7.org/linux/man-pages/man7/unix.7.html: sun_path has 108 bytes with the final zero.
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _circumstances() -> Iterator[str]:
    """Yield everything that a child of this process inherits and a fork of another one would not have."""
    for line in _read("status").splitlines():
        name, _, value = line.partition(":")
        if name in _INHERITED:
            yield line
        elif name == "SigIgn":
            # The command sets handlers for three signals, however it was started. nohup ignores SIGHUP.
            yield f"ignored {int(value, 16) & ~sum(1 << (number - 1) for number in _SET_BY_THE_COMMAND):x}"
    for name in ("limits", "cgroup", "oom_score_adj"):
        with contextlib.suppress(OSError):
            yield _read(name)
    yield from (f"{name} {os.readlink(f'{_OWN}/ns/{name}')}" for name in sorted(os.listdir(f"{_OWN}/ns")))
    yield f"nice {os.nice(0)}, scheduler {os.sched_getscheduler(0)}"
    # A chroot is no namespace.
    root = os.stat("/")
    yield f"root {root.st_dev} {root.st_ino}"


def _read(name: str) -> str:
    with open(f"{_OWN}/{name}", encoding="utf-8") as file:
        return file.read()
