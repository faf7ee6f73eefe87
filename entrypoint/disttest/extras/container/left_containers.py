"""Labels of disttest's containers, by which those of dead launches are recognised.

A killed client leaves its container running (https://github.com/moby/moby/issues/20171). Several runners may share an
engine, so a container counts as a leftover only if its launcher is provably gone, its runner has moved on to another
job, or its time limit has passed. Anything else could kill the tests of another runner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from disttest.extras.container.limits import CONTAINER_LEFT_S
from disttest.host.proc import ProcessIdentity, is_running
from disttest.model import Frozen

PREFIX = "io.disttest."
MARK = PREFIX + "launch"
RESULTS, WORKING_DIR = f"{PREFIX}results", f"{PREFIX}workdir"
"""Labels: the chosen results directory, and the folder that contains the default one."""


class RunnerJob(Frozen):
    """A job of a workflow, as far as it is known."""

    runner: str = ""
    run: str = ""
    attempt: str = ""
    job: str = ""


def job_of(environ: Mapping[str, str]) -> RunnerJob:
    """Read the job from GitHub's variables."""
    return RunnerJob(
        runner=environ.get("RUNNER_NAME", ""),
        run=environ.get("GITHUB_RUN_ID", ""),
        attempt=environ.get("GITHUB_RUN_ATTEMPT", ""),
        job=environ.get("GITHUB_JOB", ""),
    )


def make_labels(client: ProcessIdentity, job: RunnerJob, *, expires_at_s: float) -> dict[str, str]:
    """Make the labels of a container; ``expires_at_s`` is in seconds since the epoch."""
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
    """Explain why a container is a leftover; empty if it may still be in use.

    Args:
        labels: labels of the container.
        client: the present process.
        job: the present job.
        now_s: seconds since the epoch.
        is_alive: whether the process with this pid and start time runs in the present PID namespace.
    """
    if labels.get(MARK) != "1":
        return ""
    theirs = {name.removeprefix(PREFIX): value for name, value in labels.items()}
    # A pid has a meaning only within one boot and one PID namespace. Elsewhere the job or the time limit
    # decides.
    here = (theirs.get("boot"), theirs.get("namespace")) == (client.boot, client.namespace)
    start = theirs.get("pid", ""), theirs.get("ticks", "")  # no ticks in containers of older versions
    if here and all(map(str.isdecimal, start)):
        pid, started = map(int, start)
        return "" if is_alive(pid, started) else f"its launcher, process {pid}, has ended"
    if job.runner and theirs.get("runner") == job.runner and _job(theirs) != job:
        return f"runner {job.runner} runs another job now"
    if now_s > _seconds(theirs.get("expires", "")) + CONTAINER_LEFT_S:
        return "its time limit has passed"
    return ""


def _job(labels: Mapping[str, str]) -> RunnerJob:
    return RunnerJob(**{field: labels.get(field, "") for field in RunnerJob.__struct_fields__})


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf  # a label that cannot be read proves nothing


def leftovers(
    containers: Iterable[tuple[str, Mapping[str, str]]],
    *,
    client: ProcessIdentity,
    job: RunnerJob,
    now_s: float,
) -> Iterator[tuple[str, str]]:
    """Yield the ids of leftovers among containers (id, labels), with the reason for each."""
    for container_id, labels in containers:
        reason = why_leftover(labels, client=client, job=job, now_s=now_s, is_alive=is_running)
        if reason:
            yield container_id, reason
