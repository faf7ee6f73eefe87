"""What the daemons of the tests' Slurm cluster read, and the devices that it takes for GPUs."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path

CLUSTER = "disttest"
LOGIN = "10.77.0.1"
"""The address of the login node."""


def write_configuration(
    folder: Path, nodes: Mapping[str, str], *, gpus: int, cpus: int, settings: Mapping[str, str]
) -> None:
    """Write everything that has to be there before a daemon starts.

    Args:
        folder: the cluster's.
        nodes: their addresses, by name.
        gpus: on each of them.
        cpus: on each of them.
        settings: lines of slurm.conf that differ from the usual ones here, or come to them.
    """
    for index in range(gpus):
        # The major and minor number of /dev/null: it is there, it can be opened, and it does nothing.
        os.mknod(folder / f"nvidia{index}", 0o666 | 0o020000, os.makedev(1, 3))
    (folder / "state").mkdir()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/nvidia[0-{gpus - 1}]\n")
    lines = [f"{name}={value}" for name, value in (_usual(folder) | settings).items()]
    resources = f"CPUs={cpus} RealMemory=1000 Gres=gpu:{gpus} State=UNKNOWN"
    lines += [f"NodeName={name} NodeAddr={address} {resources}" for name, address in nodes.items()]
    shared = f"Nodes={','.join(nodes)} MaxTime=60 State=UP OverSubscribe=NO"
    partitions = ("test Default=YES", "gpu", "urgent PriorityTier=10")
    lines += [f"PartitionName={partition} {shared}" for partition in partitions]
    (folder / "slurm.conf").write_text("\n".join([*lines, ""]))
    prolog = folder / "task-prolog"
    prolog.write_text(f"#!/bin/sh\ncat {folder}/environment.$(hostname) 2>/dev/null\nexit 0\n")
    prolog.chmod(0o755)


def _usual(folder: Path) -> dict[str, str]:
    text = textwrap.dedent(f"""\
        ClusterName={CLUSTER}
        SlurmctldHost={os.uname().nodename}({LOGIN})
        SlurmUser=root
        AuthType=auth/munge
        AuthInfo=socket={folder}/munge.socket
        CredType=cred/munge
        AccountingStoragePass={folder}/munge.socket
        StateSaveLocation={folder}/state
        SlurmdSpoolDir={folder}/spool-%n
        SlurmctldPidFile={folder}/slurmctld.pid
        SlurmdPidFile={folder}/slurmd-%n.pid
        SlurmctldLogFile={folder}/slurmctld.log
        SlurmdLogFile={folder}/slurmd-%n.log
        SlurmctldParameters=enable_configless
        MpiDefault=none
        ProctrackType=proctrack/linuxproc
        TaskPlugin=task/none
        JobAcctGatherType=jobacct_gather/none
        SelectType=select/cons_tres
        SelectTypeParameters=CR_CPU
        SlurmdParameters=config_overrides
        GresTypes=gpu
        PreemptType=preempt/partition_prio
        PreemptMode=CANCEL
        ReturnToService=2
        SchedulerParameters=sched_interval=1,sched_min_interval=1000,batch_sched_delay=0
        SlurmdTimeout=300
        KillWait=10
        MaxJobCount=200
        TaskProlog={folder}/task-prolog
        """)
    return dict(line.split("=", 1) for line in text.splitlines())
