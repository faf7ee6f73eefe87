"""Labels on our containers, and which of them were left behind by a launch that is dead.

A killed client leaves its container running (moby#20171). Several runners may share an engine, so that a
container is only taken for a leftover when its launcher is provably gone, its runner has moved on, or its
own time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from disttest.model import Frozen

PREFIX = "io.disttest."
MARK = PREFIX + "launch"
OVERTIME_S = 120.0
"""After the time limit: the container should have ended itself by then."""


class Client(Frozen):
    """A launching process, named so that another one can tell whether it is alive."""

    boot: str
    """The kernel's boot id."""
    namespace: str
    """Its PID namespace: pids of another one mean nothing here."""
    pid: int
    started: float
    """Seconds since the epoch, in hundredths: with the pid it names a process for good."""


class Job(Frozen):
    """The job of a workflow, as far as it is known."""

    runner: str = ""
    run: str = ""
    attempt: str = ""
    job: str = ""


def this_client() -> Client:
    """The process that asks."""
    process = psutil.Process()
    return Client(
        boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        namespace=str(Path("/proc/self/ns/pid").readlink()),
        pid=process.pid,
        started=round(process.create_time(), 2),
    )


def job_of(environ: Mapping[str, str]) -> Job:
    """The job that GitHub's variables name."""
    return Job(
        runner=environ.get("RUNNER_NAME", ""),
        run=environ.get("GITHUB_RUN_ID", ""),
        attempt=environ.get("GITHUB_RUN_ATTEMPT", ""),
        job=environ.get("GITHUB_JOB", ""),
    )


def make_labels(client: Client, job: Job, *, expires_at_s: float) -> dict[str, str]:
    """Labels of a container; ``expires_at_s`` in seconds since the epoch."""
    facts = {
        "launch": "1",
        "boot": client.boot,
        "namespace": client.namespace,
        "pid": str(client.pid),
        "started": f"{client.started:.2f}",
        "expires": f"{expires_at_s:.0f}",
        "runner": job.runner,
        "run": job.run,
        "attempt": job.attempt,
        "job": job.job,
    }
    return {PREFIX + name: value for name, value in facts.items() if value}


def why_leftover(
    labels: Mapping[str, str],
    *,
    client: Client,
    job: Job,
    now_s: float,
    is_alive: Callable[[int, float], bool],
) -> str:
    """Why this container is a leftover; empty if it may still belong to someone.

    Args:
        labels: the container's.
        client: the process that asks.
        job: the job that asks.
        now_s: seconds since the epoch.
        is_alive: whether the process of this pid and start time runs in our PID namespace.
    """
    if labels.get(MARK) != "1":
        return ""
    theirs = {name.removeprefix(PREFIX): value for name, value in labels.items()}
    if (theirs.get("boot"), theirs.get("namespace")) == (client.boot, client.namespace):
        pid, started = _number(theirs.get("pid")), _number(theirs.get("started"))
        return "" if is_alive(int(pid), started) else f"its launcher, process {pid:.0f}, is gone"
    if job.runner and theirs.get("runner") == job.runner and _job(theirs) != job:
        return f"runner {job.runner} has moved on to another job"
    if now_s > _number(theirs.get("expires")) + OVERTIME_S:
        return "its time limit has passed"
    return ""


def is_alive(pid: int, started: float) -> bool:
    """Whether that very process runs, in this PID namespace."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _job(labels: Mapping[str, str]) -> Job:
    return Job(**{field: labels.get(field, "") for field in Job.__struct_fields__})


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def leftovers(
    containers: Iterable[tuple[str, Mapping[str, str]]], *, client: Client, job: Job, now_s: float
) -> Iterator[tuple[str, str]]:
    """Ids of the leftovers among containers (id, labels), with the reason for each."""
    for container_id, labels in containers:
        reason = why_leftover(labels, client=client, job=job, now_s=now_s, is_alive=is_alive)
        if reason:
            yield container_id, reason
