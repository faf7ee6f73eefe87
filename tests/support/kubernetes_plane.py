"""A real Kubernetes on this machine: etcd, a control plane, and two nodes with an engine and a kubelet each.

The control plane has a network namespace of its own, on whose bridge the nodes are; the machine's network is not touched.
Clients are outside, as any client is: a port of the machine's loopback leads to the API server. Needs root, and what
`tools/setup kubernetes` installs; the binaries are built once (`kubernetes_build`).

``python tests/support/kubernetes_plane.py`` starts one for experiments, until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes_build import Binaries, kubernetes_binaries
from kubernetes_credentials import ADDRESS, NAMESPACE, PORT, write_credentials
from kubernetes_image import ROOT, write_mounts
from kubernetes_leftovers import plane_folder
from kubernetes_node import Node, spawn, tails, wait_until, with_sbin

HERE = Path(__file__).parent / "kubernetes"
ROLE = ROOT / "examples" / "kubernetes" / "role.yaml"
"""What the documentation gives to whoever runs tests on a cluster: all that the tests have, too."""
LOST_AFTER_S = 15
"""A node that is not heard of for so long is NotReady; 40 s where nobody has said otherwise."""
TOLERATED_S = 30
"""Its pods are deleted after so long; 300 s where nobody has said otherwise."""
_COMMANDS = ("etcd", "kubectl", "dockerd", "openssl", "ip", "nsenter", "unshare", "setpriv")


@dataclass(kw_only=True)
class KubernetesPlane:
    """A running control plane and its nodes."""

    folder: Path
    binaries: Binaries
    nodes: tuple[Node, ...]
    network: subprocess.Popen[bytes]
    """Holds the plane's network namespace."""
    endpoint: str
    """The API server's host and port for clients."""
    token: str
    """The administrator's."""
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    # --- for clients

    def kubeconfig(self, user: str) -> Path:
        """The file that makes a client this user, in the namespace of the tests."""
        return self.folder / f"{user}.kubeconfig"

    def environment(self, user: str = "disttest") -> dict[str, str]:
        """What a client's environment has more than ours."""
        return {"KUBECONFIG": str(self.kubeconfig(user))}

    def kubectl(
        self, *argv: str, user: str = "admin", check: bool = True, given: str = "", limit_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run ``kubectl``; what it says."""
        done = subprocess.run(
            ["kubectl", *argv],
            env={**os.environ, **self.environment(user)},
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(argv)}: {done.stderr}{done.stdout}"
        return done

    def read(self, path: str) -> dict[str, Any] | None:
        """What the API says, such as of ``/api/v1/nodes``; None if nobody answers, or there is none.

        For what is asked again and again: a kubectl takes a good part of a second of a busy processor.
        """
        request = urllib.request.Request(
            f"https://{self.endpoint}{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        trusted = ssl.create_default_context(cafile=self.folder / "server.crt")
        try:
            with urllib.request.urlopen(request, context=trusted, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return None

    def pods(self) -> list[dict[str, Any]]:
        """All pods in the namespace of the tests."""
        found = self.read(f"/api/v1/namespaces/{NAMESPACE}/pods")
        assert found is not None, "the API server does not answer"
        return list(found["items"])

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def wait_until_free(self, limit_s: float = 120.0) -> None:
        """Return when no pod is left, in whatever state; those of a node that was away have a grace period before them.

        Raises:
            AssertionError: one is.
        """
        deadline = time.monotonic() + limit_s
        looked_s = time.monotonic()
        while left := self.pods():
            names = [pod["metadata"]["name"] for pod in left]
            assert time.monotonic() < deadline, f"pods are left after {limit_s} s: {names}"
            if time.monotonic() - looked_s >= 1.0:
                for node in self.nodes:
                    node.remove_ended_containers()
                looked_s = time.monotonic()
            time.sleep(0.1)

    # --- faults

    @contextlib.contextmanager
    def cut_off(self, node: Node) -> Iterator[None]:
        """While this lasts, nothing reaches the node and nothing comes from it; its processes go on."""
        self._inside("ip", "link", "set", _link(node), "down")
        try:
            yield
        finally:
            self._inside("ip", "link", "set", _link(node), "up")
            self.wait_for_nodes()

    def kill_kubelet(self, node: Node) -> None:
        """End a node's kubelet, without a last word; the containers go on."""
        node.kill_kubelet()

    def start_kubelet(self, node: Node) -> None:
        """Start it (again), and wait until the node is in use."""
        node.start_kubelet(self.binaries, self.kubeconfig(node.name))
        self.wait_for_nodes()

    def kill_apiserver(self) -> None:
        """End the API server, without a last word."""
        self._daemons["kube-apiserver"].kill()
        self._daemons.pop("kube-apiserver").wait(10)

    def start_apiserver(self) -> None:
        """Start it (again), and wait until it serves."""
        self._start("kube-apiserver", *self._apiserver_flags())
        wait_until(self._serves, "the API server serves", self.logs)

    def _serves(self) -> bool:
        assert self._daemons["kube-apiserver"].poll() is None, self.logs()
        # The last that is made at its first start; the controllers and nodes need it.
        return self.read("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node") is not None

    # --- starting and ending

    def start(self, clients: socket.socket) -> None:
        """Bring everything up.

        Args:
            clients: listens where clients shall find the API server.
        """
        wait_until(self._has_own_network, "a network namespace", self.logs)
        self._forward(clients)
        self._make_bridge()
        self._start_etcd()
        for node in self.nodes:
            node.boot(self._command())
            self._connect(node)
            node.start_engine(self.folder / "runc")
        self.start_apiserver()
        self._start("kube-controller-manager", *self._controller_flags())
        self._start("kube-scheduler", f"--kubeconfig={self.kubeconfig('scheduler')}", "--leader-elect=false")
        for node in self.nodes:
            node.import_images(self.binaries.pause)
            node.start_gpus(self.binaries)
            node.start_kubelet(self.binaries, self.kubeconfig(node.name))
        self.kubectl("create", "namespace", NAMESPACE)
        self.kubectl("apply", f"--filename={ROLE}")
        self.wait_for_nodes()
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        wait_until(lambda: self.read(account), "an account for pods", self.logs)

    def wait_for_nodes(self) -> None:
        """Return when every node is ready, takes pods and has its GPUs."""
        wait_until(lambda: all(map(_is_usable, self.seen_nodes())), "every node is ready", self.logs)

    def seen_nodes(self) -> list[dict[str, Any]]:
        """All nodes, as the API has them."""
        seen = self.read("/api/v1/nodes") or {"items": ()}
        return seen["items"] if len(seen["items"]) == len(self.nodes) else [{}]

    def stop(self) -> None:
        """End everything; what it had on the network goes with its namespaces."""
        for node in self.nodes:
            node.stop()
        for daemon in (*self._daemons.values(), self.network):
            daemon.kill()
            daemon.wait(10)

    def logs(self) -> str:
        """The ends of all logs."""
        return tails(self.folder.glob("*.log"))

    def _make_bridge(self) -> None:
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "add", "br0", "type", "bridge"),
            ("addr", "add", f"{ADDRESS}/24", "dev", "br0"),
            ("link", "set", "br0", "up"),
        ):
            self._inside("ip", *words)

    def _has_own_network(self) -> bool:
        return os.readlink(f"/proc/{self.network.pid}/ns/net") != os.readlink("/proc/self/ns/net")

    def _forward(self, clients: socket.socket) -> None:
        argv = [
            sys.executable,
            str(HERE / "machine" / "forward.py"),
            str(clients.fileno()),
            ADDRESS,
            str(PORT),
        ]
        log = self.folder / "forward.log"
        self._daemons["forward"] = spawn(log, self._command(*argv), pass_fds=(clients.fileno(),))

    def _start_etcd(self) -> None:
        self._daemons["etcd"] = spawn(
            self.folder / "etcd.log",
            self._command("etcd", f"--data-dir={self.folder}/etcd", "--log-level=warn", "--logger=zap"),
        )

    def _apiserver_flags(self) -> tuple[str, ...]:
        folder = self.folder
        return (
            "--etcd-servers=http://127.0.0.1:2379",
            f"--secure-port={PORT}",
            f"--advertise-address={ADDRESS}",
            "--service-cluster-ip-range=10.97.0.0/24",
            f"--tls-cert-file={folder}/server.crt",
            f"--tls-private-key-file={folder}/server.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/server.key",
            f"--service-account-signing-key-file={folder}/server.key",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--feature-gates=TTLAfterFinished=true",
            "--kubelet-preferred-address-types=InternalIP",  # nobody else knows a node's name
            f"--default-not-ready-toleration-seconds={TOLERATED_S}",
            f"--default-unreachable-toleration-seconds={TOLERATED_S}",
        )

    def _controller_flags(self) -> tuple[str, ...]:
        return (
            f"--kubeconfig={self.kubeconfig('controllers')}",
            "--leader-elect=false",
            "--feature-gates=TTLAfterFinished=true",
            f"--service-account-private-key-file={self.folder}/server.key",
            f"--root-ca-file={self.folder}/server.crt",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={LOST_AFTER_S}s",
        )

    def _connect(self, node: Node) -> None:
        """Put a node on the bridge, and tell everyone the way to its pods."""
        self._inside(
            "ip", "link", "add", _link(node), "type", "veth", "peer", "name", "eth0", "netns", str(node.pid)
        )
        self._inside("ip", "link", "set", _link(node), "master", "br0", "up")
        node.run("ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
        node.run("ip", "link", "set", "eth0", "up")
        for other in self.nodes:
            if other is not node:
                node.run("ip", "route", "add", other.pods, "via", other.address)
        self._inside("ip", "route", "add", node.pods, "via", node.address)

    def _start(self, program: str, *flags: str) -> None:
        argv = (str(self.binaries.kubernetes), program, "--v=1", *flags)
        self._daemons[program] = spawn(self.folder / f"{program}.log", self._command(*argv))

    def _command(self, *argv: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.network.pid}/ns/net", "--", *argv]

    def _inside(self, *argv: str) -> None:
        subprocess.run(self._command(*argv), check=True, timeout=30, env=with_sbin(os.environ))


def _link(node: Node) -> str:
    return f"v-{node.name}"


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a node's kubelet is heard of, and says that all is well."""
    conditions = node.get("status", {}).get("conditions", ())
    return any(seen["type"] == "Ready" and seen["status"] == "True" for seen in conditions)


def _is_usable(node: Mapping[str, Any]) -> bool:
    """Whether a node takes pods with GPUs."""
    has_gpus = node.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", "0") != "0"
    return is_ready(node) and has_gpus and not node["spec"].get("taints")


@contextlib.contextmanager
def kubernetes_plane(*, gpus: int = 2) -> Iterator[KubernetesPlane]:
    """Start a control plane and two nodes, end them at the end."""
    for command in _COMMANDS:
        if shutil.which(command, path=with_sbin(os.environ)["PATH"]) is None:
            raise RuntimeError(
                f"{command} is missing: run `make setup`, or skip with `make test SKIP=kubernetes`"
            )
    binaries = kubernetes_binaries()
    with plane_folder() as folder, socket.create_server(("127.0.0.1", 0), backlog=128) as clients:
        endpoint = f"127.0.0.1:{clients.getsockname()[1]}"
        plane = KubernetesPlane(
            folder=folder,
            binaries=binaries,
            nodes=tuple(_node(folder, number, gpus) for number in (1, 2)),
            network=spawn(folder / "network.log", ["unshare", "--net", "sleep", "infinity"]),
            endpoint=endpoint,
            token=write_credentials(folder, endpoint)["admin"],
        )
        try:
            shutil.copy(HERE / "machine" / "runc", folder)
            write_mounts(folder)
            plane.start(clients)
            yield plane
        finally:
            plane.stop()


def _node(folder: Path, number: int, gpus: int) -> Node:
    name = f"n{number}"
    return Node(name=name, number=number, folder=folder / name, cgroup=f"{folder.name}/{name}", gpus=gpus)


def main() -> None:
    """A plane for experiments."""
    with kubernetes_plane() as plane, contextlib.suppress(KeyboardInterrupt):
        print(
            f"export KUBECONFIG={plane.kubeconfig('disttest')}  # or {plane.kubeconfig('admin')}", flush=True
        )
        signal.pause()


if __name__ == "__main__":
    main()
