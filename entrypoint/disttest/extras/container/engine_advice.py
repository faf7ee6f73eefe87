"""Refusals of container engines, each with a line of advice."""

from __future__ import annotations

from disttest.host.machine_advice import MACHINE_ADVICE, AdviceTable, Known

ENGINE_ADVICE = AdviceTable(
    Known(
        "nvidia-smi-missing",
        r"nvidia-container-cli: initialization error|load library failed: libnvidia-ml",
        "the NVIDIA toolkit is there, but the driver is not: install the driver, or run with --gpus none",
    ),
    Known(
        "image-name",
        r"invalid reference format",
        "this is not a valid name of an image: use NAME:TAG in lower case, or NAME@sha256:DIGEST",
    ),
    Known(
        "network-missing",
        r"network \S+ not found|no such container",
        "the engine has no such network: `docker network ls` lists those that exist; correct --network",
    ),
    Known(
        "memory-limit-small",
        r"minimum memory limit allowed",
        "the engine refuses so little memory: raise --memory",
    ),
    Known(
        "image-missing",
        r"manifest (for .* )?(not found|unknown)|no such image|name unknown|repository .* not found",
        "there is no such image: check its name and tag (--image), or build it first and use --pull never",
    ),
    Known(
        "image-denied",
        r"pull access denied|unauthorized|denied: |authentication required",
        "the registry does not let this host pull: check the image's name, and `docker login` before the"
        " launch",
    ),
    Known(
        "registry-unreachable",
        r"lookup .* (no such host|on .*: )|dial tcp"
        r"|TLS handshake|registry.*(timeout|EOF)|toomanyrequests|i/o timeout",
        "the registry cannot be reached from the engine: check its network and proxy, or load the image"
        " and use --pull never",
    ),
    Known(
        "engine-denied",
        r"permission denied.*(docker|podman)|PermissionError",
        "this user may not use the engine: add it to the engine's group (`usermod -aG docker USER`) and"
        " log in again, or use a rootless engine",
    ),
    Known(
        "image-entrypoint",
        r"(exec: )?\"?(timeout|disttest)\"?: executable file not found|\b(timeout|disttest)\b.*no such file",
        "the image has no `disttest` (or no coreutils) on its PATH: use the disttest image, or one built"
        " from it",
    ),
    Known(
        "disk-full",
        r"no space left on device",
        "the engine's disk is full: `docker system prune`, or move its data root",
    ),
    Known(
        "mount-refused",
        r"bind source path does not exist|mounts denied|error mounting|invalid mount config|not shared"
        r" from the host",
        "a folder cannot be mounted: it has to exist on the engine's host under the same path; a"
        " launcher that itself runs in a container has to mount its workspace at the host's path",
    ),
    Known(
        "ulimit-refused",
        r"error setting rlimit|ulimit.*operation not permitted|setrlimit `?RLIMIT_",
        "the engine may not raise limits: give its service LimitMEMLOCK=infinity",
    ),
    # Podman's own packages do not always depend on it: https://github.com/podman-container-tools/podman/issues/4159
    Known(
        "engine-init-missing",
        r"container-init binary not found",
        "Podman lacks the init that containers start with: install its package (`catatonit`)",
    ),
    Known(
        "engine-gone",
        r"connection (aborted|refused|reset)|Cannot connect to the Docker daemon|No such file or"
        r" directory.*sock|FileNotFoundError|remote end closed|read timed out|Bad response from Docker engine",
        "the engine does not answer: check that it runs (`systemctl status docker`), and DOCKER_HOST",
    ),
)

MISTAKES = frozenset(
    ("image-name", "image-missing", "image-entrypoint", "network-missing", "memory-limit-small")
)
"""Refusals of the user's request, which no other machine would accept."""


def is_mistake(message: str) -> bool:
    """Whether the engine refused because of the request."""
    advice = ENGINE_ADVICE.find(message)
    return advice is not None and advice.slug in MISTAKES


def explain(message: str) -> str:
    """Put the message on one line, with a line of advice below it if there is any, also for errors of the machine."""
    said = " ".join(message.split())
    advice = ENGINE_ADVICE.find(message) or MACHINE_ADVICE.find(message)
    return f"{said}\n{advice.action} [{advice.slug}]" if advice else said
