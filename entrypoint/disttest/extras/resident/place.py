"""The names of the files of a resident parent, in texts: who only looks for one imports little.

What a process inherits and cannot give to a fork of another one (user, limits, cgroup, namespaces, processors) is part of
the name: a command under other circumstances has a parent of its own.
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
"""Lines of ``/proc/self/status`` that a child has from its parent."""
_SET_BY_THE_COMMAND = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_OWN = "/proc/self"


def folder_for(environ: Mapping[str, str]) -> str:
    """The folder of all files of this user's parents."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime):
        return os.path.join(runtime, "disttest")
    return f"/tmp/disttest-{os.getuid()}"  # noqa: S108 - make_private() sees to it that nobody else's is there


def is_private(folder: str) -> bool:
    """Whether nobody else can be at the other end of a socket there.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    facts = os.lstat(folder)
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def name_for(tests: str) -> str:
    """What the names of its files begin with, of the parent for a folder of tests and for commands like this process."""
    told = "\n".join([tests, *_circumstances()])
    return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()[:16]


@contextlib.contextmanager
def short(path: str) -> Iterator[str]:
    """A name of a socket that fits into an address, which has room for 107 characters."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _circumstances() -> Iterator[str]:
    """What a child of this process inherits and a fork of another one would not have."""
    for line in _read("status").splitlines():
        name, _, value = line.partition(":")
        if name in _INHERITED:
            yield line
        elif name == "SigIgn":
            yield f"ignored {int(value, 16) & ~sum(1 << (number - 1) for number in _SET_BY_THE_COMMAND):x}"
    for name in ("limits", "cgroup", "oom_score_adj"):
        with contextlib.suppress(OSError):
            yield _read(name)
    yield from (f"{name} {os.readlink(f'{_OWN}/ns/{name}')}" for name in sorted(os.listdir(f"{_OWN}/ns")))
    yield f"nice {os.nice(0)}, scheduler {os.sched_getscheduler(0)}"
    root = os.stat("/")
    yield f"root {root.st_dev} {root.st_ino}"


def _read(name: str) -> str:
    with open(f"{_OWN}/{name}", encoding="utf-8") as file:
        return file.read()
