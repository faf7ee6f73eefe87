"""Slurm as a launcher: one ``srun`` for each job queues, starts an agent on each node, and carries lines both ways.

``srun`` and not ``sbatch``: its standard input and output reach all nodes without a shared file system, also while the
controller is away, and an interactive allocation is never requeued. Each call is a list of arguments.
"""

from __future__ import annotations

import getpass
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future

from disttest.errors import SchedulerError
from disttest.extras.cluster.limits import JOB_CANCEL_S
from disttest.extras.cluster.protocol.job import NAME_PREFIX, JobSpec, dead_names
from disttest.extras.cluster.protocol.launcher import (
    Capacity,
    Changed,
    Idle,
    JobEnded,
    JobOutcome,
    JobState,
    LauncherOptions,
    NodeEnded,
    NodeVariables,
    Output,
    RunDescription,
    RunEvent,
)
from disttest.extras.cluster.protocol.wire import CancelJob, encode_order, is_ours
from disttest.extras.cluster.schedulers.agent_command import call, travelling
from disttest.extras.cluster.schedulers.pipes import OutputLine, PipedProcesses, Program
from disttest.extras.slurm import words
from disttest.extras.slurm.limits import (
    SLURM_ANSWER_S,
    SLURM_FIRST_POLL_S,
    SLURM_KILL_S,
    SLURM_LONGEST_POLL_S,
    SLURM_RUNNING_POLL_S,
)
from disttest.extras.slurm.submission import SlurmQueue, srun_arguments
from disttest.host.process import signal_name
from disttest.limits import TICK_S

_COMPLAINTS_KEPT = 50
_WHY_CANCELLED = (JobState.TIME_LIMIT, JobState.PREEMPTED, JobState.OUT_OF_MEMORY)
_SUSPENDED = "suspended by scontrol suspend, or for another job of its partition"
# They name the controller and prove the user. All others describe an allocation around the client.
_KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")

NODE_VARIABLES = NodeVariables(
    scheduler="slurm",
    node=("SLURM_NODEID",),
    # The step's number first: the allocation around it may have more nodes.
    nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    host=("SLURMD_NODENAME",),
    # Slurm names no address of the node itself. The one that faces srun's machine will do.
    peer=("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"),
)


def make_launcher(environ: Mapping[str, str], options: LauncherOptions) -> SlurmLauncher:
    """Make the launcher."""
    return SlurmLauncher(environ, options, command=options.command)


class SlurmRun:
    """A job that was submitted to Slurm."""

    def __init__(
        self, job: JobSpec, argv: Sequence[str], environ: Mapping[str, str], queue: SlurmQueue
    ) -> None:
        self._job = job
        self._queue = queue
        self._program = Program(argv, environ)
        self._processes = PipedProcesses([self._program])
        self._sent = bytearray()
        """Orders sent before an agent was heard; an srun that replaces a refused one gets them, too."""
        self._seen = RunDescription(scheduler="slurm", job_id="", name=job.name, state=JobState.QUEUED)
        self._complaints: list[str] = []
        self._started = False
        self._poll_s = SLURM_FIRST_POLL_S
        self._next_poll_s = time.monotonic() + SLURM_FIRST_POLL_S
        self._poll: Future[words.QueueLine | None] | None = None
        self._cancelled = ""
        self._cancelled_s = 0.0
        self._scancelled = False
        self._verdict: JobOutcome | None = None

    def events(self) -> Iterator[RunEvent]:
        """Yield the events of the job."""
        yield Changed(description=self._seen)
        yield from self._until_ended()
        # srun gives up after a minute at MaxJobCount, and immediately at a limit of an account. Both pass.
        while why := self._refused_for_now():
            self._seen = _replace(self._seen, reason=why)
            yield Changed(description=self._seen)
            yield from self._pause()
            if not self._cancelled:
                self._ask_again()
                yield from self._until_ended()
        yield JobEnded(end=self._end())

    def send(self, line: bytes) -> None:
        """Send a line to all agents."""
        if not self._started:
            self._sent += line
        self._processes.send(line)

    def cancel(self, reason: str) -> None:
        """Cancel the agents, or the queued job if there are none yet."""
        if self._cancelled:
            return
        self._cancelled, self._cancelled_s = reason, time.monotonic()
        self.send(encode_order(CancelJob(reason=reason)))
        if not self._started:
            self._scancel()

    def describe(self) -> RunDescription:
        """Return the last known state of the job."""
        return self._seen

    def _until_ended(self) -> Iterator[RunEvent]:
        for line in self._processes.lines(TICK_S):
            before = self._seen
            self._keep_limits()
            if line is not None:
                yield from self._handle_line(line)
            else:
                yield Idle()
            self._keep_polling()
            if self._seen != before:
                yield Changed(description=self._seen)

    def _refused_for_now(self) -> str:
        """Return why Slurm refused the job temporarily; empty if it did not, or if the job was cancelled."""
        return "" if self._started or self._cancelled else words.refused_for_now(self._complaints)

    def _pause(self) -> Iterator[RunEvent]:
        """Wait before the next attempt, longer each time, like polls of queued jobs."""
        deadline = time.monotonic() + self._longer_pause_s()
        while time.monotonic() < deadline and not self._cancelled:
            time.sleep(TICK_S)
            yield Idle()

    def _longer_pause_s(self) -> float:
        longest_s = SLURM_RUNNING_POLL_S if self._started else SLURM_LONGEST_POLL_S
        self._poll_s = min(longest_s, self._poll_s * 1.5)
        return self._poll_s

    def _ask_again(self) -> None:
        # Otherwise the refusal of the first srun would count as one of the second.
        self._complaints.clear()
        self._processes = PipedProcesses([self._program])
        self._processes.send(bytes(self._sent))

    def _handle_line(self, line: OutputLine) -> Iterator[RunEvent]:
        if line.error:
            text = line.text.decode("utf-8", "replace")
            # Tests also write to standard error, without a limit.
            self._complaints = [*self._complaints, text][-_COMPLAINTS_KEPT:]
            tasks, how = words.task_ended(text)
            yield from (NodeEnded(node=task, how=how) for task in tasks)
            return
        if is_ours(line.text) and not self._started:
            self._started = True
            # The agents have read the orders. They are not sent again.
            self._sent.clear()
            self._seen = _replace(self._seen, state=JobState.RUNNING, reason="")
        yield Output(line=line.text)

    def _keep_polling(self) -> None:
        """Query the queue, less often each time: a thousand waiting jobs must not keep the controller busy."""
        if self._poll is not None and self._poll.done():
            self._take_description(self._poll.result())
            self._poll, self._next_poll_s = None, time.monotonic() + self._poll_s
        if self._poll is None and time.monotonic() >= self._next_poll_s:
            # Half of the interval: jobs that were submitted together then share one answer.
            self._poll = self._queue.begin_poll(self._job.name, fresh_s=self._longer_pause_s() / 2)

    def _take_description(self, line: words.QueueLine | None) -> None:
        if line is None and self._started:
            return  # its end is srun's to report
        if line is None:
            # Not in the queue although srun lives: the job is not accepted yet. A full queue makes srun wait.
            waiting = words.refused_for_now(self._complaints) or next(
                filter(None, map(words.clean, reversed(self._complaints))), ""
            )
            self._seen = _replace(self._seen, reason=waiting or self._seen.reason)
            return
        self._seen = _replace(
            self._seen,
            job_id=line.job_id,
            # While srun runs, its own report of the end is still to come, and says more.
            state=line.state if not line.state.is_over else self._seen.state,
            reason=line.reason if line.state is JobState.QUEUED else _SUSPENDED * line.suspended,
            nodes=(line.nodes,) if line.nodes else (),
        )
        self._verdict = words.stuck(line)
        if self._verdict is not None:
            self.cancel(str(self._verdict))

    def _keep_limits(self) -> None:
        if not self._cancelled_s:
            return
        waited_s = time.monotonic() - self._cancelled_s
        if waited_s > JOB_CANCEL_S and not self._scancelled:
            self._scancel()
        # srun waits for its agents even after scancel, for example if a node does not respond.
        if self._scancelled and waited_s > SLURM_KILL_S:
            self._processes.signal(signal.SIGKILL)

    def _scancel(self) -> None:
        self._scancelled = True
        # By name: while it waits, its number may not be known yet.
        self._queue.cancel([self._job.name])
        # While srun waits for an allocation, a signal ends it; afterwards it passes signals on to the agents.
        self._processes.signal(signal.SIGTERM)

    def _end(self) -> JobOutcome:
        (code,) = self._processes.codes()
        if self._verdict is not None:
            return _replace_end(self._verdict, code)
        # A negative code is a signal to srun itself. It could not report the end of the job any more.
        if code is not None and code < 0 and not self._scancelled:
            return self._end_without_srun(-code)
        if not self._scancelled and words.was_cancelled(self._complaints):
            return self._cancelled_by_hand(code)
        if self._cancelled:
            # A message from before may be the reason of the cancellation. The controller is not queried, since this
            # must be fast.
            # Without the queue, and with a code, so that only the complaints decide.
            said = words.end_of(None, self._complaints, code or 1, started=self._started)
            if said.state in _WHY_CANCELLED:
                return _replace_end(said, code)
            return JobOutcome(state=JobState.CANCELLED, reason=self._cancelled, exit_code=code)
        seen = self._queue.final_line(self._job.name)
        end = words.end_of(seen, self._complaints, code, started=self._started)
        return self._cancelled_by_hand(code) if end.state is JobState.CANCELLED else end

    def _end_without_srun(self, signum: int) -> JobOutcome:
        """Cancel the job of a killed srun: its nodes would stay allocated until its time limit."""
        self._scancel()
        return JobOutcome(
            state=JobState.CANCELLED,
            reason=f"srun on the machine that submits was ended by {signal_name(signum)}, so the job was cancelled",
            advice="The kernel kills it when memory runs out there (dmesg). Nothing is wrong with the tests: run it again",
            exit_code=-signum,
        )

    def _cancelled_by_hand(self, code: int | None) -> JobOutcome:
        return JobOutcome(
            state=JobState.CANCELLED_BY_HAND,
            reason=f"job {self._seen.job_id or self._job.name} was ended by scancel, which this run did not call",
            advice="Nothing is wrong with the tests: run it again",
            exit_code=code,
        )


class SlurmLauncher:
    """Slurm, through its commands on this machine."""

    name = "slurm"

    def __init__(
        self,
        environ: Mapping[str, str],
        options: LauncherOptions | None = None,
        *,
        command: Sequence[str] = (),
    ) -> None:
        # A client that runs inside an allocation submits jobs, not steps of that allocation.
        self._environ = {
            name: value
            for name, value in environ.items()
            if not name.startswith(("SLURM_", "SBATCH_", "SRUN_")) or name in _KEPT_VARIABLES
        }
        self._options = options or LauncherOptions()
        self._command = tuple(command)
        self._queue = SlurmQueue(self._environ)

    def capacity(self) -> Capacity:
        """Return the capacity of the nodes.

        Raises:
            SchedulerError: Slurm is missing, out of reach or too old, or the partition does not exist.
        """
        scheduler = self._output_of(["srun", "--version"]).strip()
        words.parse_version(scheduler)
        partition = self._options.partition
        if partition:
            # For its error message: sinfo filters, and lists nothing for a partition that does not exist.
            self._output_of(["scontrol", "show", "partition", partition])
        where = [f"--partition={partition}"] if partition else []
        return words.parse_capacity(
            self._output_of(["sinfo", "-h", *where, "-o", words.SINFO_FORMAT]), scheduler
        )

    def check(self, job: JobSpec) -> None:
        """Do nothing: srun checks its arguments."""

    def start(self, job: JobSpec) -> SlurmRun:
        """Submit a job.

        Raises:
            SchedulerError: srun is not installed.
        """
        passed = travelling(job, self._environ)
        argv = srun_arguments(job, self._options, sorted(passed), self._command)
        try:
            return SlurmRun(job, argv, {**self._environ, **passed}, self._queue)
        except OSError as error:
            raise _not_installed("srun", error) from error

    def leftovers(self) -> Sequence[str]:
        """Return the names of this user's jobs whose client ran on this machine and is dead."""
        return dead_names(self.every_name())

    def remove(self, names: Sequence[str]) -> None:
        """End jobs by name."""
        self._queue.cancel(names)

    def every_name(self) -> Sequence[str]:
        """Return the names of all of this user's jobs of disttest."""
        said = self._queue.ask(["squeue", "-h", f"--user={getpass.getuser()}", "-o", "%j"])
        # Empty without an answer: cleaning up must not fail a run whose controller is away for a moment.
        lines = said.stdout.splitlines() if said is not None and said.returncode == 0 else []
        return [name for name in map(str.strip, lines) if name.startswith(NAME_PREFIX)]

    def _output_of(self, argv: Sequence[str]) -> str:
        """Return the output of a command; raise its error message."""
        try:
            said = call(argv, self._environ, limit_s=2 * SLURM_ANSWER_S)
        except OSError as error:
            raise _not_installed(argv[0], error) from error
        except subprocess.TimeoutExpired:
            raise SchedulerError(
                f"Slurm does not answer: {shlex.join(argv)} took more than {2 * SLURM_ANSWER_S:g} s; "
                "check its controller with scontrol ping"
            ) from None
        if said.returncode:
            complaint = (
                "; ".join(filter(None, map(words.clean, said.stderr.splitlines()))) or said.stdout.strip()
            )
            raise SchedulerError(f"Slurm says: {complaint} ({shlex.join(argv)})")
        return said.stdout


def _not_installed(command: str, error: OSError) -> SchedulerError:
    return SchedulerError(
        f"cannot run {command} ({error.strerror}); --launcher slurm needs Slurm's client commands on this machine "
        "(Debian: slurm-client)"
    )


def _replace(seen: RunDescription, **changes: object) -> RunDescription:
    return RunDescription(**{**{name: getattr(seen, name) for name in seen.__struct_fields__}, **changes})


def _replace_end(end: JobOutcome, code: int | None) -> JobOutcome:
    return JobOutcome(state=end.state, reason=end.reason, advice=end.advice, exit_code=code)
