"""A scheduler that is a list of hosts: an agent on each by ssh, first come, first served. docs/schedulers.md explains it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from disttest.extras.cluster.limits import JOB_CANCEL_S, POLL_S
from disttest.extras.cluster.protocol import launcher as api
from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.wire import CancelJob, encode_order
from disttest.extras.cluster.schedulers.agent_command import agent_command, travelling
from disttest.extras.cluster.schedulers.pipes import PipedProcesses, Program

SSH = ("ssh", "-o", "BatchMode=yes")

# 1. Where an agent finds its place: variables that the scheduler sets, or that we set as here.
NODE_VARIABLES = api.NodeVariables(
    scheduler="hosts",
    node=("DISTTEST_NODE",),
    nodes=("DISTTEST_NODES",),
    host=("DISTTEST_NODE_NAME",),
    peer=("DISTTEST_NODE_PEER",),
)


def make_launcher(environ: Mapping[str, str], options: api.LauncherOptions) -> HostsLauncher:
    """``--partition n1,n2,n3``."""
    return HostsLauncher(environ, options.partition.split(","), options.command)


class HostsRun:
    """2. A job: it waits for its hosts, carries lines both ways, and says exactly once how it ended."""

    def __init__(self, job: JobSpec, launcher: HostsLauncher) -> None:
        self._job = job
        self._launcher = launcher
        self._processes = PipedProcesses()
        self._hosts: Sequence[str] = ()
        self._held = bytearray()
        self._cancelled, self._cancelled_s = "", 0.0

    def events(self) -> Iterator[api.RunEvent]:
        """Yield what happens, with Idle now and then: the caller keeps limits."""
        yield api.Changed(description=self.describe())
        try:
            while not self._hosts and not self._cancelled:
                self._hosts = self._launcher.take(self._job.shape.nodes)
                time.sleep(0.0 if self._hosts else POLL_S)
                yield api.Idle()
            if self._hosts:
                yield from self._run()
        finally:  # the hosts are others' whatever happened
            self._processes.kill()
            self._launcher.give(self._hosts)
        yield api.JobEnded(end=self._end())

    def _run(self) -> Iterator[api.RunEvent]:
        for node, host in enumerate(self._hosts):
            self._processes.start(self._launcher.program(self._job, node, host, self._hosts[0]))
        self._processes.send(bytes(self._held))
        yield api.Changed(description=self.describe())
        for line in self._processes.lines(POLL_S):
            # 3. What an agent prints on its standard error is for people; its standard output is the protocol.
            yield api.Idle() if line is None or line.error else api.Output(line=line.text)
            if self._cancelled and time.monotonic() - self._cancelled_s > JOB_CANCEL_S:
                self._processes.kill()
                return

    def send(self, line: bytes) -> None:
        """To all agents; what comes before they run waits, what comes after they ended is dropped."""
        if self._hosts:
            self._processes.send(line)
        else:
            self._held += line

    def cancel(self, reason: str) -> None:
        """Agents end by themselves when they are told: their last words explain what the tests were doing."""
        if not self._cancelled:
            self._cancelled, self._cancelled_s = reason, time.monotonic()
            self._processes.send(encode_order(CancelJob(reason=reason)))

    def describe(self) -> api.RunDescription:
        """For people."""
        state = api.JobState.RUNNING if self._hosts else api.JobState.QUEUED
        return api.RunDescription(scheduler="hosts", job_id="", name=self._job.name, state=state)

    def _end(self) -> api.JobOutcome:
        # 4. Why it ended, in the scheduler's words where it has some. An exit code is stored and decides nothing.
        code = next(filter(None, self._processes.codes()), None)
        if self._cancelled:
            return api.JobOutcome(state=api.JobState.CANCELLED, reason=self._cancelled, exit_code=code)
        if code == 255:
            return api.JobOutcome(state=api.JobState.NODE_LOST, reason="ssh lost a host", exit_code=code)
        return api.JobOutcome(state=api.JobState.COMPLETED, exit_code=code)


class HostsLauncher:
    """5. The door: what there is, a job, and what a dead client left."""

    name = "hosts"

    def __init__(
        self,
        environ: Mapping[str, str],
        hosts: Sequence[str],
        command: Sequence[str],
        ssh: Sequence[str] = SSH,
    ) -> None:
        self._environ, self._ssh = environ, ssh
        self._command = tuple(command) or agent_command()
        self._hosts, self._free, self._lock = tuple(hosts), list(hosts), threading.Lock()

    def capacity(self) -> api.Capacity:
        """So many hosts; a real one would ask each what it has."""
        return api.Capacity(nodes=len(self._hosts), gpus_per_node=0, cpus_per_node=1, scheduler="ssh")

    def take(self, count: int) -> Sequence[str]:
        """All hosts of a job or none: two jobs must not hold a half each."""
        with self._lock:
            if len(self._free) < count:
                return ()
            taken, self._free = self._free[:count], self._free[count:]
            return taken

    def give(self, hosts: Sequence[str]) -> None:
        """They are free again."""
        with self._lock:
            self._free += hosts

    def program(self, job: JobSpec, node: int, host: str, first: str) -> Program:
        """The agent of a node; ssh joins its words with spaces, so that none may have one."""
        place = {"": node, "S": job.shape.nodes, "_NAME": host, "_PEER": first}
        variables = [f"DISTTEST_NODE{name}={value}" for name, value in place.items()]
        return Program([*self._ssh, host, "env", *variables, *self._command], travelling(job, self._environ))

    def check(self, job: JobSpec) -> None:
        """Nothing to refuse."""

    def start(self, job: JobSpec) -> HostsRun:
        """A job that waits for its hosts."""
        return HostsRun(job, self)

    def every_name(self) -> Sequence[str]:
        """None: its jobs have no names."""
        return ()

    leftovers = every_name

    def remove(self, names: Sequence[str]) -> None:
        """Nothing to do: agents end with their ssh."""
