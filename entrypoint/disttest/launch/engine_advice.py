"""What a container engine says when it refuses, and what to do about it: one line of advice for each."""

from __future__ import annotations

import re
from typing import NamedTuple

from disttest.host import machine_advice as host_advice


class EngineAdvice(NamedTuple):
    """One known message."""

    slug: str
    """Names its entry in ``docs/errors.md``."""
    pattern: re.Pattern[str]
    text: str


def _advice(slug: str, pattern: str, text: str) -> EngineAdvice:
    return EngineAdvice(slug, re.compile(pattern, re.IGNORECASE | re.DOTALL), text)


KNOWN = (
    _advice(
        "nvidia-smi-missing",
        r"nvidia-container-cli: initialization error|load library failed: libnvidia-ml",
        "the NVIDIA toolkit is there, but the driver is not: install the driver, or run with --gpus none",
    ),
    _advice(
        "image-missing",
        r"manifest (for .* )?(not found|unknown)|no such image|name unknown|repository .* not found",
        "there is no such image: check its name and tag (--image), or build it first and use --pull never",
    ),
    _advice(
        "image-denied",
        r"pull access denied|unauthorized|denied: |authentication required",
        "the registry does not let this host pull: check the image's name, and `docker login` before the"
        " launch",
    ),
    _advice(
        "registry-unreachable",
        r"lookup .* (no such host|on .*: )|dial tcp|TLS"
        r" handshake|registry.*(timeout|EOF)|toomanyrequests|i/o timeout",
        "the registry cannot be reached from the engine: check its network and proxy, or load the image"
        " and use"
        " --pull never",
    ),
    _advice(
        "engine-denied",
        r"permission denied.*(docker|podman)|PermissionError",
        "this user may not use the engine: add it to the engine's group (`usermod -aG docker USER`) and"
        " log in"
        " again, or use a rootless engine",
    ),
    _advice(
        "image-entrypoint",
        r"(exec: )?\"?(timeout|disttest)\"?: executable file not found|\b(timeout|disttest)\b.*no such file",
        "the image has no `disttest` (or no coreutils) on its PATH: use the disttest image, or one built"
        " from it",
    ),
    _advice(
        "disk-full",
        r"no space left on device",
        "the engine's disk is full: `docker system prune`, or move its data root",
    ),
    _advice(
        "mount-refused",
        r"bind source path does not exist|mounts denied|error mounting|invalid mount config|not shared"
        r" from the host",
        "a folder cannot be mounted: it has to exist on the engine's host under the same path; a"
        " launcher that"
        " itself runs in a container has to mount its workspace at the host's path",
    ),
    _advice(
        "ulimit-refused",
        r"error setting rlimit|ulimit.*operation not permitted",
        "the engine may not raise limits: give its service LimitMEMLOCK=infinity",
    ),
    _advice(
        "engine-gone",
        r"connection (aborted|refused|reset)|Cannot connect to the Docker daemon|No such file or"
        r" directory.*sock"
        r"|FileNotFoundError|remote end closed|read timed out|Bad response from Docker engine",
        "the engine does not answer: check that it runs (`systemctl status docker`), and DOCKER_HOST",
    ),
)


def advise(message: str) -> EngineAdvice | None:
    """The first known message that this one contains, or None."""
    return next((known for known in KNOWN if known.pattern.search(message)), None)


def explain(message: str) -> str:
    """The message on one line, with a line of advice below where there is some.

    What a broken machine says (CUDA, NVML, a missing toolkit) has its advice in :mod:`disttest.host.machine_advice`.
    """
    said = " ".join(message.split())
    if known := advise(message):
        return f"{said}\n{known.text} [{known.slug}]"
    if machine := host_advice.explain(message):
        return f"{said}\n{machine.action} [{machine.slug}]"
    return said
