"""Accounting for the tests' Slurm cluster: a real slurmdbd, and a MariaDB behind a socket in the cluster's folder.

Needs Debian's slurmdbd and mariadb-server-core; they are there a few seconds later than a cluster without them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from slurm_cluster import SlurmCluster, need_commands, slurm_cluster
from slurm_configuration import CLUSTER

ACCOUNTS = {
    "free": (),
    "one-job": ("GrpJobs=1",),
    "one-at-once": ("MaxSubmitJobs=1",),
    "one-node": ("MaxTRES=node=1",),
}
"""Accounts of whoever runs the tests, with what each may not exceed."""
QOS = "strict"
"""A quality of service whose jobs have one node at most, and are refused at once if they want more."""
_SETTINGS = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": "127.0.0.1",
    "AccountingStorageEnforce": "associations,limits",
}
_SYSTEM_TABLES = Path("/usr/share/mysql/mysql_system_tables.sql")


@contextlib.contextmanager
def accounting_cluster() -> Iterator[SlurmCluster]:
    """A cluster of two nodes that runs jobs of known accounts only, within their limits."""
    need_commands("slurmdbd", "mariadbd")
    with slurm_cluster(settings=_SETTINGS, prepare=_start) as cluster:
        yield cluster


def _start(cluster: SlurmCluster) -> None:
    _start_database(cluster)
    _start_slurmdbd(cluster)
    _sacctmgr(cluster, "add", "cluster", CLUSTER)
    _sacctmgr(cluster, "add", "qos", QOS, "set", "MaxTRES=node=1", "Flags=DenyOnLimit")
    for account, limits in ACCOUNTS.items():
        _sacctmgr(cluster, "add", "account", account, *(["set", *limits] if limits else []))
        _sacctmgr(cluster, "add", "user", "root", f"account={account}", "set", f"QOS=normal,{QOS}")


def _start_database(cluster: SlurmCluster) -> None:
    """Nobody else is in the cluster's network or its folder: there are no grants, and nothing has to survive a crash."""
    folder = cluster.folder / "database"
    folder.mkdir()
    mariadbd = ("mariadbd", "--no-defaults", "--user=root", f"--datadir={folder}")
    small = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M", "--innodb-flush-method=nosync")
    tables = f"create database mysql;\nuse mysql;\n{_SYSTEM_TABLES.read_text()}"
    subprocess.run([*mariadbd, *small, "--bootstrap"], input=tables, text=True, check=True, timeout=60)
    socket = _socket(cluster)
    cluster.start_daemon(
        "mariadbd",
        [
            *mariadbd,
            *small,
            "--skip-grant-tables",
            "--skip-networking",
            f"--socket={socket}",
            f"--pid-file={folder}.pid",
        ],
    )
    cluster.wait_until(socket.exists)


def _start_slurmdbd(cluster: SlurmCluster) -> None:
    folder = cluster.folder
    conf = folder / "slurmdbd.conf"
    conf.touch(0o600)
    conf.write_text(
        f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket\n"
        f"DbdHost={os.uname().nodename}\nDbdAddr=127.0.0.1\nSlurmUser=root\n"
        "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=root\n"
        f"LogFile={folder}/slurmdbd.log\nPidFile={folder}/slurmdbd.pid\n"
    )
    cluster.start_daemon("slurmdbd", cluster.command("slurmdbd", "-D"), MYSQL_UNIX_PORT=str(_socket(cluster)))
    cluster.wait_until(lambda: cluster.on_login("sacctmgr", "-n", "show", "cluster").returncode == 0)


def _socket(cluster: SlurmCluster) -> Path:
    return cluster.folder / "database.socket"


def _sacctmgr(cluster: SlurmCluster, *words: str) -> None:
    done = cluster.on_login("sacctmgr", "--immediate", *words)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{cluster.logs()}"
