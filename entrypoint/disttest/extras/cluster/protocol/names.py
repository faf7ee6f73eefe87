"""Names of jobs from which another client can determine whether their client is alive."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from disttest.extras.cluster.protocol.job import NAME_PREFIX
from disttest.host.proc import is_running, this_process

_NAME = re.compile(rf"{NAME_PREFIX}(?P<machine>[0-9a-f]{{10}})-(?P<pid>\d+)-t(?P<started>\d+)(-j\d+.*)?")


def this_machine() -> str:
    """Return a digest of the kernel's boot id and the PID namespace, within which pids are unique."""
    here = this_process()
    return hashlib.sha256(f"{here.boot} {here.namespace}".encode()).hexdigest()[:10]


def new_run_id() -> str:
    """Return an id for a run of this process, unique by machine, pid and start time."""
    process = this_process()
    return f"{this_machine()}-{process.pid}-t{process.started}"


def dead_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the jobs whose client ran on this machine and is gone; the state of other clients is unknown."""
    machine = this_machine()
    matches = ((name, _NAME.fullmatch(name)) for name in names)
    return tuple(
        name
        for name, match in matches
        if match and match["machine"] == machine and not is_running(int(match["pid"]), int(match["started"]))
    )
