"""The scheduler ``local``: the agents of all nodes are processes of this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence

from disttest.errors import SchedulerError
from disttest.extras.cluster.limits import JOB_CANCEL_S, POLL_S
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.launcher import (
    Capacity,
    Changed,
    Idle,
    JobEnded,
    JobOutcome,
    JobState,
    LauncherOptions,
    NodeVariables,
    Output,
    RunDescription,
    RunEvent,
)
from disttest.extras.cluster.protocol.wire import CancelJob, encode_order
from disttest.extras.cluster.schedulers.agent_command import agent_command, travelling
from disttest.extras.cluster.schedulers.pipes import PipedProcesses, Program
from disttest.host.process import signal_name

NODE_VARIABLES = NodeVariables(
    scheduler="local",
    node=("DISTTEST_NODE",),
    nodes=("DISTTEST_NODES",),
    host=("DISTTEST_NODE_NAME",),
    address=("DISTTEST_NODE_ADDRESS",),
)


def make_launcher(environ: Mapping[str, str], options: LauncherOptions) -> LocalLauncher:
    """Make a launcher with at least two nodes on this machine."""
    # Two even without --nodes, so that tests with the mark nodes(2) can be tried.
    return LocalLauncher(environ, nodes=max(2, options.nodes), command=options.command)


class LocalRun:
    """Agents that were started on this machine."""

    def __init__(self, job: JobSpec, environ: Mapping[str, str], command: Sequence[str]) -> None:
        self._job = job
        self._cancelled = ""
        self._cancelled_s = 0.0
        self._late = False
        self._limit_s = time.monotonic() + job.limit_s
        self._processes = PipedProcesses(
            [
                Program([*command], {**environ, **_place(node, job.shape.nodes)}, job.directory or None)
                for node in range(job.shape.nodes)
            ]
        )

    def events(self) -> Iterator[RunEvent]:
        """Yield what happens."""
        yield Changed(description=self.describe())
        for line in self._processes.lines(POLL_S):
            self._keep_limits()
            yield Output(line=line.text) if line is not None else Idle()
        yield JobEnded(end=self._end())

    def send(self, line: bytes) -> None:
        """Send a line to all agents."""
        self._processes.send(line)

    def cancel(self, reason: str) -> None:
        """Cancel the agents; those that do not end are killed."""
        if not self._cancelled:
            self._cancelled, self._cancelled_s = reason, time.monotonic()
            self.send(encode_order(CancelJob(reason=reason)))

    def describe(self) -> RunDescription:
        """Return the last known state."""
        return RunDescription(
            scheduler="local",
            job_id=",".join(map(str, self._processes.pids)),
            name=self._job.name,
            state=JobState.RUNNING,
            nodes=tuple(node_name(node) for node in range(self._job.shape.nodes)),
        )

    def _keep_limits(self) -> None:
        now_s = time.monotonic()
        if not self._late and now_s > self._limit_s:
            self._late = True
            self._processes.signal(signal.SIGTERM)
            # SIGTERM first, as Slurm does at a time limit; SIGKILL follows like after a cancellation.
            self._cancelled_s = self._cancelled_s or now_s
        if self._cancelled_s and now_s - self._cancelled_s > JOB_CANCEL_S:
            self._processes.signal(signal.SIGKILL)

    def _end(self) -> JobOutcome:
        bad = [(node, code) for node, code in enumerate(self._processes.codes()) if code]
        words = "; ".join(f"the agent of {node_name(node)} ended with {_code(code)}" for node, code in bad)
        exit_code = bad[0][1] if bad else 0
        if self._late:
            reason = f"the job exceeded its limit of {self._job.limit_s:.0f} s"
            return JobOutcome(state=JobState.TIME_LIMIT, reason=reason, exit_code=exit_code)
        if self._cancelled:
            return JobOutcome(state=JobState.CANCELLED, reason=self._cancelled, exit_code=exit_code)
        if any(code < 0 for _, code in bad):
            return JobOutcome(state=JobState.NODE_LOST, reason=words, exit_code=exit_code)
        return JobOutcome(state=JobState.COMPLETED, reason=words, exit_code=exit_code)


class LocalLauncher:
    """Launcher on this machine, to try a spanning world and for tests."""

    name = "local"

    def __init__(self, environ: Mapping[str, str], *, nodes: int = 2, command: Sequence[str] = ()) -> None:
        self._environ = environ
        self._nodes = nodes
        self._command = tuple(command) or agent_command()

    def capacity(self) -> Capacity:
        """Return the requested number of nodes, each with all processors of this machine."""
        cpus = len(os.sched_getaffinity(0))
        return Capacity(nodes=self._nodes, gpus_per_node=0, cpus_per_node=cpus, scheduler="local")

    def check(self, job: JobSpec) -> None:
        """Refuse an image.

        Raises:
            SchedulerError: there is one.
        """
        if job.image:
            raise SchedulerError(
                "--image needs a scheduler that starts containers; leave it out with --launcher local"
            )

    def start(self, job: JobSpec) -> LocalRun:
        """Start the agents.

        Raises:
            SchedulerError: an agent cannot be started.
        """
        try:
            return LocalRun(job, travelling(job, self._environ), self._command)
        except OSError as error:
            raise SchedulerError(f"the node agent cannot be started: {error}") from error

    def every_name(self) -> Sequence[str]:
        """Return nothing: local jobs have no names."""
        return ()

    def leftovers(self) -> Sequence[str]:
        """Return nothing: agents end with their client."""
        return ()

    def remove(self, names: Sequence[str]) -> None:
        """Do nothing: there is no job to end."""


def node_name(node: int) -> str:
    """Return the name of a node of the local scheduler."""
    return f"local{node}"


def _place(node: int, nodes: int) -> dict[str, str]:
    return {
        "DISTTEST_NODE": str(node),
        "DISTTEST_NODES": str(nodes),
        "DISTTEST_NODE_NAME": node_name(node),
        "DISTTEST_NODE_ADDRESS": "127.0.0.1",
    }


def _code(code: int) -> str:
    return signal_name(-code) if code < 0 else f"exit code {code}"
