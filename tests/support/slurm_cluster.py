"""A real Slurm cluster on this machine: one controller and several nodes, each with a network of its own.

A node is what a container is: its own process, network, host-name and mount namespaces, with its own address on
a bridge. The file system is shared, so that the nodes have this checkout and its environment without an image.
GPUs are character devices that do nothing; Slurm counts and grants them, and sets ``CUDA_VISIBLE_DEVICES``.

Everything lives in a network namespace of the cluster's own (the *login* node), where the controller and the clients
run: the machine's network is not touched. Needs root and Debian's slurm packages; a start takes about two seconds.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_configuration import LOGIN, write_configuration

START_TIMEOUT_S = 60.0
_COMMANDS = ("slurmctld", "slurmd", "munged", "srun", "ip", "nsenter", "unshare")


@dataclass(kw_only=True)
class Node:
    """A node: its name, its address, and the init process of its namespaces."""

    name: str
    address: str
    init: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process that is number 1 inside."""
        assert self.init is not None
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()
        return int(children[0])


@dataclass(kw_only=True)
class SlurmCluster:
    """A running cluster."""

    folder: Path
    nodes: tuple[Node, ...]
    login: subprocess.Popen[bytes]
    gpus_per_node: int
    cpus_per_node: int
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    # --- for clients

    def environment(self) -> dict[str, str]:
        """What a client's environment has more than ours."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, *argv: str) -> list[str]:
        """The same command on the login node."""
        return [shutil.which("nsenter") or "nsenter", f"--net=/proc/{self.login.pid}/ns/net", "--", *argv]

    def on_login(self, *argv: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node."""
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            self.command(*argv),
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            **options,
        )

    def on_node(self, node: Node, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside a node."""
        enter = ["nsenter", f"--target={node.pid}", "--net", "--pid", "--uts", "--mount", "--"]
        return subprocess.run([*enter, *argv], capture_output=True, text=True, check=False, timeout=60)

    def jobs(self) -> list[str]:
        """Jobs that are not over: ``ID NAME STATE``."""
        return self.on_login("squeue", "-h", "-o", "%i %j %T").stdout.splitlines()

    def processes(self, node: Node) -> list[str]:
        """Command lines of what runs inside a node, Slurm's own daemons excluded."""
        lines = self.on_node(node, "ps", "-eo", "pid=,args=").stdout.splitlines()
        ours = ("sleep infinity", "slurmd", "slurmstepd", "ps -eo", "<defunct>")
        return [line for line in lines if not any(word in line for word in ours)]

    def wait_until_free(self, limit_s: float = 15.0) -> None:
        """Return when no job holds anything and no process of a job is left.

        Raises:
            AssertionError: something is.
        """
        deadline = time.monotonic() + limit_s
        while True:
            left = [
                *self.jobs(),
                *(line for node in self.nodes if node.init for line in self.processes(node)),
            ]
            if not left:
                return
            assert time.monotonic() < deadline, f"still allocated or alive after {limit_s} s: {left}"
            time.sleep(0.1)

    # --- faults

    def kill_node(self, node: Node) -> None:
        """Power off: every process at once, and no last packet."""
        self._link(node, up=False)
        os.kill(node.pid, signal.SIGKILL)
        assert node.init is not None
        node.init.wait(10)
        node.init = None
        self._in_login("ip", "link", "delete", f"v-{node.name}")
        self._daemons.pop(f"slurmd-{node.name}").wait(10)

    def start_node(self, node: Node) -> None:
        """Power on (again)."""
        node.init = self._boot(node)
        self._start_slurmd(node)
        self.on_login("scontrol", "update", f"nodename={node.name}", "state=down", "reason=rebooted")
        self.on_login("scontrol", "update", f"nodename={node.name}", "state=resume")
        self.wait_for_nodes()

    @contextlib.contextmanager
    def cut_off(self, one: Node, other: Node) -> Iterator[None]:
        """While this lasts, two nodes cannot reach each other; both still reach the login node."""
        routes = [(one, other.address), (other, one.address)]
        for node, address in routes:
            done = self.on_node(node, "ip", "route", "add", "blackhole", address)
            assert done.returncode == 0, done.stderr
        try:
            yield
        finally:
            for node, address in routes:
                self.on_node(node, "ip", "route", "del", "blackhole", address)

    @contextlib.contextmanager
    def unplugged(self, node: Node) -> Iterator[None]:
        """While this lasts, a node reaches nothing, and nothing reaches it."""
        self._link(node, up=False)
        try:
            yield
        finally:
            self._link(node, up=True)

    def kill_controller(self) -> None:
        """End slurmctld, without a last word, once it has written down which jobs there are (it does so now and then)."""
        saved, names = self.folder / "state" / "job_state", [job.split()[1].encode() for job in self.jobs()]
        self.wait_until(lambda: all(name in saved.read_bytes() for name in names))
        self._daemons["slurmctld"].kill()
        self._daemons.pop("slurmctld").wait(10)

    def stop_controller(self) -> None:
        """End slurmctld as its administrator would: what it knows is written down."""
        self._daemons["slurmctld"].terminate()
        self._daemons.pop("slurmctld").wait(30)

    def start_controller(self, *, idle: bool = True) -> None:
        """Start slurmctld; it goes on with the state of an earlier one, and may hold jobs that have ended since.

        Args:
            idle: whether to wait until it holds none.
        """
        self.start_daemon("slurmctld", self.command("slurmctld", "-D"))
        self.wait_for_nodes(idle=idle)

    def start_daemon(self, name: str, argv: Sequence[str], **environ: str) -> None:
        """Start a daemon that ends with the cluster; what it says is in ``NAME.out.log``."""
        with (self.folder / f"{name}.out.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**_with_sbin(os.environ), **self.environment(), **environ},
            )

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return when a daemon is there.

        Raises:
            AssertionError: it is not in time; the ends of the logs say why.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    # --- starting and ending

    def start(self, prepare: Callable[[SlurmCluster], None] | None = None) -> None:
        """Bring everything up.

        Args:
            prepare: starts what the controller needs, where that is more than munge.
        """
        self._in_login("ip", "link", "set", "lo", "up")
        self._in_login("ip", "link", "add", "br0", "type", "bridge")
        self._in_login("ip", "addr", "add", f"{LOGIN}/24", "dev", "br0")
        self._in_login("ip", "link", "set", "br0", "up")
        self._start_munged()
        if prepare is not None:
            prepare(self)
        self.start_daemon("slurmctld", self.command("slurmctld", "-D"))
        for node in self.nodes:
            node.init = self._boot(node)
            self._start_slurmd(node)
        self.wait_for_nodes()

    def stop(self) -> None:
        """End everything; what the cluster had on the network goes with its namespace."""
        for node in self.nodes:
            if node.init is not None:
                os.kill(node.pid, signal.SIGKILL)
                node.init.wait(10)
        for daemon in (*self._daemons.values(), self.login):
            daemon.kill()
            daemon.wait(10)

    def wait_for_nodes(self, *, idle: bool = True) -> None:
        """Return when every node is idle, or at least known."""

        def are_there() -> bool:
            seen = self.on_login("sinfo", "-h", "-N", "-o", "%N %t").stdout
            states = dict(line.split() for line in seen.splitlines())
            return len(states) == len(self.nodes) and (not idle or set(states.values()) == {"idle"})

        self.wait_until(are_there)

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            parts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(parts)

    def _in_login(self, *argv: str) -> None:
        subprocess.run(self.command(*argv), check=True, timeout=30)

    def _boot(self, node: Node) -> subprocess.Popen[bytes]:
        argv = ["unshare", "--fork", "--pid", "--mount-proc", "--uts", "--net", "--kill-child"]
        script = f"hostname {node.name} && ip link set lo up && exec sleep infinity"
        init = subprocess.Popen(
            self.command(*argv, "sh", "-c", script), start_new_session=True, stderr=subprocess.DEVNULL
        )
        node.init = init
        self.wait_until(lambda: "sleep" in self._name_of(node))
        link = f"v-{node.name}"
        self._in_login(
            "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid)
        )
        self._in_login("ip", "link", "set", link, "master", "br0", "up")
        for words in (["addr", "add", f"{node.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            done = self.on_node(node, "ip", *words)
            assert done.returncode == 0, done.stderr
        return init

    @staticmethod
    def _name_of(node: Node) -> str:
        try:
            return Path(f"/proc/{node.pid}/comm").read_text()
        except (IndexError, OSError):
            return ""

    def _link(self, node: Node, *, up: bool) -> None:
        self._in_login("ip", "link", "set", f"v-{node.name}", "up" if up else "down")

    def _start_munged(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        argv = ["munged", "--foreground", "--force", f"--key-file={key}"]
        argv += [f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid"]
        argv += [f"--seed-file={self.folder}/munge.seed", f"--log-file={self.folder}/munged.log"]
        self.start_daemon("munged", argv)
        self.wait_until((self.folder / "munge.socket").exists)

    def _start_slurmd(self, node: Node) -> None:
        inside = ["nsenter", f"--target={node.pid}", "--net", "--pid", "--uts", "--mount", "--"]
        # A child of the node's init: it goes when the node goes.
        self.start_daemon(f"slurmd-{node.name}", [*inside, "slurmd", "-D"])


def _with_sbin(environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, "PATH": f"{environ['PATH']}:/usr/sbin:/sbin"}


def need_commands(*commands: str) -> None:
    """Check that they are installed.

    Raises:
        RuntimeError: one is not.
    """
    for command in commands:
        if shutil.which(command, path=_with_sbin(os.environ)["PATH"]) is None:
            raise RuntimeError(
                f"{command} is missing: run `make setup`, or skip with `make test SKIP=cluster`"
            )


@contextlib.contextmanager
def slurm_cluster(
    *,
    nodes: int = 2,
    gpus: int = 2,
    cpus: int = 8,
    settings: Mapping[str, str] | None = None,
    prepare: Callable[[SlurmCluster], None] | None = None,
) -> Iterator[SlurmCluster]:
    """Start a cluster, end it at the end.

    Args:
        nodes: how many, ``n1`` and so on.
        gpus: on each of them.
        cpus: on each of them.
        settings: lines of slurm.conf that are to differ from the usual ones here, or to come to them.
        prepare: starts what the controller needs, where that is more than munge.
    """
    need_commands(*_COMMANDS)
    with tempfile.TemporaryDirectory(prefix="dt-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        login = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], start_new_session=True)
        _wait_for_namespace(login)
        cluster = SlurmCluster(
            folder=folder,
            nodes=tuple(Node(name=f"n{k}", address=f"10.77.0.{10 + k}") for k in range(1, nodes + 1)),
            login=login,
            gpus_per_node=gpus,
            cpus_per_node=cpus,
        )
        addresses = {node.name: node.address for node in cluster.nodes}
        write_configuration(folder, addresses, gpus=gpus, cpus=cpus, settings=settings or {})
        try:
            cluster.start(prepare)
            yield cluster
        finally:
            cluster.stop()


def _wait_for_namespace(login: subprocess.Popen[bytes]) -> None:
    ours = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{login.pid}/ns/net") == ours:
        assert login.poll() is None
        time.sleep(0.005)
