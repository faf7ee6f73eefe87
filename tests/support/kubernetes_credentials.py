"""Who may do what on the tests' Kubernetes: a certificate, tokens, and a kubeconfig for each user."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path

ADDRESS = "10.99.0.1"
"""The API server's, for the control plane and the nodes."""
PORT = 6443
NAMESPACE = "disttest"
CLIENTS = {
    "admin": ("admin", "system:masters"),
    "disttest": (f"system:serviceaccount:{NAMESPACE}:disttest", ""),
    "stranger": ("stranger", ""),
}
"""Who is outside: user and group. `disttest` is the account of `examples/kubernetes/role.yaml`, `stranger` may do nothing."""
PARTS = {
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "n1": ("system:node:n1", "system:nodes"),
    "n2": ("system:node:n2", "system:nodes"),
}
"""Parts of the cluster itself."""


def write_credentials(folder: Path, endpoint: str) -> dict[str, str]:
    """Write everyone's files; their tokens.

    Args:
        folder: where to.
        endpoint: the API server's host and port for clients.
    """
    _make_certificate(folder)
    everyone = CLIENTS | PARTS
    tokens = {name: secrets.token_hex(16) for name in everyone}
    lines = [f'{tokens[name]},{user},{user},"{group}"' for name, (user, group) in everyone.items()]
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
    _write_kubeconfigs(folder, {name: tokens[name] for name in CLIENTS}, endpoint)
    _write_kubeconfigs(folder, {name: tokens[name] for name in PARTS}, f"{ADDRESS}:{PORT}")
    return tokens


def _make_certificate(folder: Path) -> None:
    """One key for all: it serves, and signs the tokens of service accounts."""
    names = f"subjectAltName=IP:{ADDRESS},IP:127.0.0.1"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=disttest",
            ),
            *("-addext", names, "-keyout", str(folder / "server.key"), "-out", str(folder / "server.crt")),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )


def _write_kubeconfigs(folder: Path, tokens: Mapping[str, str], server: str) -> None:
    for name, token in tokens.items():
        cluster = {"server": f"https://{server}", "certificate-authority": str(folder / "server.crt")}
        context = {"cluster": "tests", "user": name, "namespace": NAMESPACE}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": context}],
            "current-context": "tests",
        }
        path = folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
