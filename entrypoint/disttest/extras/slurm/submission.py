"""Calls of Slurm's commands: srun for a job and its agents, with or without a container; squeue and scancel for all jobs."""

from __future__ import annotations

import getpass
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.launcher import LauncherOptions
from disttest.extras.cluster.schedulers.agent_command import NOT_INSIDE, agent_command, call
from disttest.extras.slurm import words
from disttest.extras.slurm.limits import SLURM_ANSWER_S, SLURM_FINAL_S


def srun_arguments(
    job: JobSpec, options: LauncherOptions, variables: Sequence[str], command: Sequence[str] = ()
) -> list[str]:
    """Return the command line of a job. ``--no-requeue`` belongs to sbatch; srun is never requeued."""
    shape = job.shape
    argv = [
        "srun",
        f"--job-name={job.name}",
        f"--nodes={shape.nodes}",
        f"--ntasks={shape.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={shape.ranks_per_node}",
        # In minutes; 0 would ask for no limit.
        f"--time={max(1, math.ceil(job.limit_s / 60))}",
        # https://slurm.schedmd.com/srun.html: each line of input goes to all agents.
        "--input=all",
        # The end of one agent must not end the others: they still have verdicts to send.
        "--kill-on-bad-exit=0",
        # If a node is lost, the agents of the others still have to report.
        "--no-kill",
        # Without this option, srun passes the whole environment on, with the tokens of a CI job.
        f"--export={','.join(_exported(variables, options) if job.image else variables)}",
    ]
    if shape.gpus_per_node:
        argv.append(f"--gres=gpu:{shape.gpus_per_node}")
    if options.partition:
        argv.append(f"--partition={options.partition}")
    if options.account:
        argv.append(f"--account={options.account}")
    if job.directory and not job.image:
        argv.append(f"--chdir={job.directory}")
    # The user's arguments come last: of an option that is given twice, the last one counts.
    return [*argv, *options.extra, *_agent(job, options, variables, command)]


def _agent(
    job: JobSpec, options: LauncherOptions, variables: Sequence[str], command: Sequence[str]
) -> list[str]:
    """Return the agent's command line: plain, with pyxis (options of srun), or in ``docker run``."""
    if not job.image:
        return list(command or agent_command())
    agent = list(command) or ["disttest", "node-agent"]
    directory = job.directory or os.getcwd()  # noqa: PTH109  # as a string, unresolved
    if options.container == "pyxis":
        mounts = ",".join(_mount(mount) for mount in (directory, *options.mounts))
        return [
            f"--container-image={job.image}",
            f"--container-mounts={mounts}",
            f"--container-workdir={directory}",
            # A mounted home would put its ~/.local/lib/python before the packages of the image.
            "--no-container-mount-home",
            *agent,
        ]
    volumes = [f"--volume={_mount(mount)}" for mount in (directory, *options.mounts)]
    inside = [name for name in variables if name not in NOT_INSIDE]
    given = [*inside, "CUDA_VISIBLE_DEVICES", *_SLURM_VARIABLES]
    return [
        "docker",
        "run",
        "--rm",
        # Without it, docker closes the input, which an agent takes for the end of its client.
        "--interactive",
        "--init",
        # The rendezvous listens on an address of the node, which ranks on other nodes have to reach.
        "--network=host",
        # Files in mounted folders belong to the submitting user, as without a container.
        f"--user={os.getuid()}:{os.getgid()}",
        # Docker's default of 64 MiB is too small for NCCL.
        "--shm-size=8g",
        # NCCL pins memory. Where the limit may not be raised, tests without GPUs still run.
        *(["--gpus=all", "--ulimit=memlock=-1"] if job.shape.gpus_per_node else []),
        f"--label=io.disttest.job={job.name}",
        *volumes,
        f"--workdir={directory}",
        # Names only: each user of the node can read a command line. docker takes the values from srun's task.
        *(f"--env={name}" for name in given),
        # The entry point of the image is disttest.
        *([f"--entrypoint={agent[0]}"] if command else []),
        job.image,
        *agent[1:],
    ]


def _exported(variables: Sequence[str], options: LauncherOptions) -> list[str]:
    """Return the variables of a task in a container, with those that the node needs to find ``docker``."""
    kept = ("PATH", "HOME") if options.container == "docker" else ()
    return [name for name in variables if name not in NOT_INSIDE or name in kept]


_SLURM_VARIABLES = (
    "SLURM_NODEID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURMD_NODENAME",
    "SLURM_LAUNCH_NODE_IPADDR",
)


def _mount(text: str) -> str:
    return text if ":" in text else f"{text}:{text}"


class SlurmQueue:
    """Queue shared by the threads of all jobs. A controller that does not answer is no answer, never an exception."""

    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._environ = environ
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._lines: dict[str, words.QueueLine] = {}
        # One thread: `line` holds a lock, for which further ones would only wait.
        self._polls = ThreadPoolExecutor(max_workers=1, thread_name_prefix="squeue")

    def begin_poll(self, name: str, *, fresh_s: float) -> Future[words.QueueLine | None]:
        """Begin what :meth:`line` does. The caller goes on: a controller may take ``SLURM_ANSWER_S`` not to answer."""
        return self._polls.submit(self.line, name, fresh_s=fresh_s)

    def line(self, name: str, *, fresh_s: float) -> words.QueueLine | None:
        """Return a job's line of the queue, at most ``fresh_s`` seconds old; None if the job is not in it.

        However many jobs wait, one squeue queries the controller for all of them.
        """
        with self._lock:
            if self._clock() - self._asked_s >= fresh_s:
                lines = self._ask_queue([f"--user={getpass.getuser()}"])
                self._lines = {line.name: line for line in lines}
                self._asked_s = self._clock()
            return self._lines.get(name)

    def final_line(self, name: str) -> words.QueueLine | None:
        """Return the job's line after its end, which the controller may take a moment to notice."""
        # srun ends a moment before the controller has the final state, which may still be COMPLETING.
        deadline = self._clock() + SLURM_FINAL_S
        while True:
            lines = self._ask_queue(["--states=all", f"--name={name}"])
            line = lines[-1] if lines else None
            if line is None or line.state.is_over or self._clock() > deadline:
                return line
            time.sleep(0.1)

    def cancel(self, names: Sequence[str]) -> None:
        """Cancel jobs of this user by name."""
        for name in names:
            self.ask(["scancel", "--quiet", f"--user={getpass.getuser()}", f"--name={name}"])

    def _ask_queue(self, which: Sequence[str]) -> Sequence[words.QueueLine]:
        said = self.ask(["squeue", "-h", *which, "-o", words.SQUEUE_FORMAT])
        return words.parse_queue(said.stdout) if said is not None and said.returncode == 0 else ()

    def ask(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
        """Run a command; None if it is missing or does not end in time."""
        try:
            return call(argv, self._environ, limit_s=SLURM_ANSWER_S)
        except (subprocess.TimeoutExpired, OSError):
            return None
