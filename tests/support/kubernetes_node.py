"""A node of the tests' Kubernetes: an engine and a kubelet in namespaces of their own.

Its first process is the init of a PID namespace that is killed with whoever started it, so that nothing of the node
outlives the tests: its containers, mounts and network interfaces are gone with its namespaces. What is left on disk and of
control groups is `kubernetes_leftovers`' to remove.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine import docker_command
from kubernetes_build import Binaries
from kubernetes_image import PAUSE, import_images

START_TIMEOUT_S = 180.0
"""A busy machine takes a minute."""
KERNEL = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""What a kubelet sets for the whole machine; here it sets files of its own instead."""

KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    # It says that it lives four times in this; 40 s where nobody has said otherwise.
    "nodeLeaseDurationSeconds": 12,
    # How long a pod may wait for another look at it; a minute where nobody has said otherwise.
    "syncFrequency": "2s",
    # Only the API server is in its network.
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}
"""What has no flag, and what has another default beside a file."""

BOOT = """
set -e
hostname "$NODE"
ip link set lo up
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/log
mkdir -p /run/lock /run/kernel /var/lib/kubelet /var/log/pods "$FOLDER/kubelet/plugins_registry" "$FOLDER/pods"
mount --bind "$FOLDER/kubelet" /var/lib/kubelet
mount --bind "$FOLDER/pods" /var/log/pods
: > /run/resolv.conf
for name in $KERNEL; do
    own=/run/kernel/$(echo $name | tr / -)
    cat /proc/sys/$name > $own
    mount --bind $own /proc/sys/$name
done
exec sleep infinity
"""


def spawn(
    log: Path, argv: Sequence[str], *, pass_fds: Sequence[int] = (), **environ: str
) -> subprocess.Popen[bytes]:
    """Start a daemon; it does not outlive this process, however that ends."""
    with log.open("ab") as file:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *argv],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=with_sbin({**os.environ, **environ}),
            pass_fds=pass_fds,
        )


def with_sbin(environ: Mapping[str, str]) -> dict[str, str]:
    """The same variables; daemons are found, too."""
    return {**environ, "PATH": f"{environ['PATH']}:/usr/sbin:/sbin"}


def wait_until(
    is_true: Callable[[], object], what: str, logs: Callable[[], str], limit_s: float = START_TIMEOUT_S
) -> None:
    """Return when it is.

    Raises:
        AssertionError: it is not in time; the ends of the logs say why.
    """
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, f"not in {limit_s:.0f} s: {what}\n{logs()}"
        time.sleep(0.05)


@dataclass(kw_only=True)
class Node:
    """A node that is running, or will."""

    name: str
    number: int
    folder: Path
    """What it writes; the logs of its daemons lie beside it."""
    cgroup: str
    """The path of its control group, below each controller's root."""
    gpus: int
    init: subprocess.Popen[bytes] | None = None
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"10.99.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        """The addresses of its pods."""
        return f"10.98.{self.number}.0/24"

    @property
    def docker_host(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    @property
    def pid(self) -> int:
        """Number 1 of its PID namespace, as it is called out here."""
        assert self.init is not None
        return _child(self.init.pid)

    def command(self, *argv: str) -> list[str]:
        """The same command inside the node."""
        return ["nsenter", f"--target={self.pid}", "--net", "--pid", "--uts", "--mount", "--", *argv]

    def run(self, *argv: str) -> str:
        """Run a command inside the node; what it says."""
        done = subprocess.run(
            self.command(*argv),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=with_sbin(os.environ),
        )
        assert done.returncode == 0, f"{argv} on {self.name}: {done.stderr}"
        return done.stdout

    # --- starting and ending

    def boot(self, inside: Sequence[str]) -> None:
        """Make the namespaces.

        Args:
            inside: the command that enters the network namespace of the plane.
        """
        self.folder.mkdir(exist_ok=True)
        own = {"NODE": self.name, "FOLDER": str(self.folder), "KERNEL": " ".join(KERNEL)}
        unshare = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--uts", "--net", "--mount")
        self.init = spawn(self.log("init"), [*inside, *unshare, "sh", "-c", BOOT], **own)
        wait_until(self._booted, f"{self.name} boots", self.logs)

    def _booted(self) -> bool:
        assert self.init is not None
        assert self.init.poll() is None, self.logs()
        try:
            return "sleep" in Path(f"/proc/{self.pid}/comm").read_text()
        except (IndexError, OSError):
            return False

    def start_engine(self, runtime: Path) -> None:
        """Start dockerd: it filters nothing, and its containers are in the node's control group."""
        self.daemons["dockerd"] = spawn(
            self.log("dockerd"),
            self.command(
                *("dockerd", "--data-root", f"{self.folder}/docker", "--exec-root", "/run/docker"),
                *("--host", self.docker_host, "--pidfile", "/run/docker.pid", "--log-level", "warn"),
                *("--bip", self.pods.replace(".0/24", ".1/24"), "--iptables=false", "--ip-masq=false"),
                *("--cgroup-parent", f"/{self.cgroup}/engine", "--oom-score-adjust=0"),
                *(f"--add-runtime=node={runtime}", "--default-runtime=node"),
            ),
        )

    def import_images(self, pause: Path) -> None:
        """Give the engine its images, as soon as it serves."""
        socket = self.folder / "docker.sock"
        wait_until(socket.exists, f"dockerd of {self.name} starts", self.logs)
        import_images(self.docker_host, pause)

    def remove_ended_containers(self) -> None:
        """Do what a kubelet does once in a minute; a pod that was deleted is there until then."""
        subprocess.run(
            [docker_command(), "--host", self.docker_host, "container", "prune", "--force"],
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )

    def start_kubelet(self, binaries: Binaries, kubeconfig: Path) -> None:
        """Start the kubelet."""
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps(KUBELET))
        self.daemons["kubelet"] = spawn(
            self.log("kubelet"),
            self.command(
                *(str(binaries.kubernetes), "kubelet", f"--kubeconfig={kubeconfig}", "--v=2"),
                *(f"--hostname-override={self.name}", f"--node-ip={self.address}"),
                *(f"--docker-endpoint={self.docker_host}", f"--pod-infra-container-image={PAUSE}"),
                *(
                    "--cgroup-driver=cgroupfs",
                    f"--cgroup-root=/{self.cgroup}",
                    "--enforce-node-allocatable=pods",
                ),
                *("--volume-plugin-dir=/run/volume-plugins", "--resolv-conf=/run/resolv.conf"),
                *("--fail-swap-on=false", "--hairpin-mode=none", "--oom-score-adj=0", "--read-only-port=0"),
                # The machine's disk is others' to fill: no pod is evicted and no image removed for it.
                *("--eviction-hard=", "--image-gc-high-threshold=100"),
                *(f"--config={config}", "--kube-api-qps=50", "--kube-api-burst=100"),
            ),
        )

    def start_gpus(self, binaries: Binaries) -> None:
        """Start the plugin that gives out GPUs; kubelets find it."""
        argv = self.command(str(binaries.kubernetes), "gpus", str(self.gpus))
        self.daemons["gpus"] = spawn(self.log("gpus"), argv)

    def kill_kubelet(self) -> None:
        """End it without a last word; its containers go on."""
        daemon = self.daemons.pop("kubelet")
        os.kill(_child(daemon.pid), signal.SIGKILL)
        daemon.wait(10)

    def stop(self) -> None:
        """End everything in it at once."""
        for process in (self.init, *self.daemons.values()):
            if process is not None:
                process.kill()
                process.wait(10)
        self.daemons.clear()
        self.init = None

    def log(self, name: str) -> Path:
        return self.folder.with_name(f"{self.name}-{name}.log")

    def logs(self) -> str:
        """The ends of the logs of its daemons."""
        return tails(self.folder.parent.glob(f"{self.name}-*.log"))


def tails(paths: Iterable[Path]) -> str:
    """The ends of logs."""
    return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(paths))


def _child(pid: int) -> int:
    """The one child of a process that waits for it."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
