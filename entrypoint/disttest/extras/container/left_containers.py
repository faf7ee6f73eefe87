"""Labels on our containers, and which of them were left behind by a launch that is dead.

A killed client leaves its container running (moby#20171). Several runners may share an engine, so that a
container is only taken for a leftover when its launcher is provably gone, its runner has moved on, or its
own time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from disttest.extras.container.limits import CONTAINER_LEFT_S
from disttest.host.proc import ProcessIdentity, is_running
from disttest.model import Frozen

PREFIX = "io.disttest."
MARK = PREFIX + "launch"
RESULTS, WORKING_DIR = f"{PREFIX}results", f"{PREFIX}workdir"
"""Labels: the results directory that was chosen, and the folder that has the usual one."""


class RunnerJob(Frozen):
    """The job of a workflow, as far as it is known."""

    runner: str = ""
    run: str = ""
    attempt: str = ""
    job: str = ""


def job_of(environ: Mapping[str, str]) -> RunnerJob:
    """The job that GitHub's variables name."""
    return RunnerJob(
        runner=environ.get("RUNNER_NAME", ""),
        run=environ.get("GITHUB_RUN_ID", ""),
        attempt=environ.get("GITHUB_RUN_ATTEMPT", ""),
        job=environ.get("GITHUB_JOB", ""),
    )


def make_labels(client: ProcessIdentity, job: RunnerJob, *, expires_at_s: float) -> dict[str, str]:
    """Labels of a container; ``expires_at_s`` in seconds since the epoch."""
    facts = {
        "launch": "1",
        "boot": client.boot,
        "namespace": client.namespace,
        "pid": str(client.pid),
        "ticks": str(client.started),
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
    client: ProcessIdentity,
    job: RunnerJob,
    now_s: float,
    is_alive: Callable[[int, int], bool],
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
    here = (theirs.get("boot"), theirs.get("namespace")) == (client.boot, client.namespace)
    if here and "ticks" in theirs:  # else an older version has started it
        pid, started = int(_number(theirs.get("pid"))), int(_number(theirs["ticks"]))
        return "" if is_alive(pid, started) else f"its launcher, process {pid}, is gone"
    if job.runner and theirs.get("runner") == job.runner and _job(theirs) != job:
        return f"runner {job.runner} has moved on to another job"
    if now_s > _number(theirs.get("expires")) + CONTAINER_LEFT_S:
        return "its time limit has passed"
    return ""


def _job(labels: Mapping[str, str]) -> RunnerJob:
    return RunnerJob(**{field: labels.get(field, "") for field in RunnerJob.__struct_fields__})


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def leftovers(
    containers: Iterable[tuple[str, Mapping[str, str]]],
    *,
    client: ProcessIdentity,
    job: RunnerJob,
    now_s: float,
) -> Iterator[tuple[str, str]]:
    """Ids of the leftovers among containers (id, labels), with the reason for each."""
    for container_id, labels in containers:
        reason = why_leftover(labels, client=client, job=job, now_s=now_s, is_alive=is_running)
        if reason:
            yield container_id, reason
