"""Command line of srun: the request of a job, and its agents with or without a container. Pure functions."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.launcher import LauncherOptions
from disttest.extras.cluster.schedulers.agent_command import NOT_INSIDE, agent_command


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
        f"--time={max(1, math.ceil(job.limit_s / 60))}",
        # https://slurm.schedmd.com/srun.html: each line of input goes to all agents.
        "--input=all",
        # The end of one agent must not end the others: they still have verdicts to send.
        "--kill-on-bad-exit=0",
        # If a node is lost, the agents of the others still have to report.
        "--no-kill",
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
        "--interactive",
        "--init",
        "--network=host",
        # Files in mounted folders belong to the submitting user, as without a container.
        f"--user={os.getuid()}:{os.getgid()}",
        "--shm-size=8g",
        # NCCL pins memory. Where the limit may not be raised, tests without GPUs still run.
        *(["--gpus=all", "--ulimit=memlock=-1"] if job.shape.gpus_per_node else []),
        f"--label=io.disttest.job={job.name}",
        *volumes,
        f"--workdir={directory}",
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
