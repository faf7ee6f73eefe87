"""What a launch starts, as frozen data, and what that is in the Docker SDK's words."""

from __future__ import annotations

import math
from typing import Any

from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from disttest.extras.container.gpus import ALL, CDI_KIND, GpuGrant, Way
from disttest.extras.container.limits import CONTAINER_LIMIT_S, CONTAINER_TERM_S
from disttest.model import Frozen

STACK_BYTES = 64 * 1024**2
GIB = 1024**3
SMALLEST_SHM = GIB
LARGEST_SHM = 64 * GIB


_STEP_ASIDE = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""The image says ``all``, for hosts whose default runtime is NVIDIA's; this makes that runtime add
nothing."""


class Bind(Frozen):
    """A folder or file of the host that the container sees under the same path."""

    path: str
    read_only: bool = False


class LaunchSpec(Frozen):
    """A container, before it exists."""

    image: str
    arguments: tuple[str, ...]
    """What follows ``disttest``."""
    working_dir: str
    binds: tuple[Bind, ...] = ()
    environment: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    labels: dict[str, str] = {}  # noqa: RUF012
    gpus: GpuGrant = GpuGrant()
    user: str = ""
    """``uid:gid``; empty: the image's own."""
    shm_bytes: int = SMALLEST_SHM
    time_limit_s: float = CONTAINER_LIMIT_S
    """The container ends by itself after that, whether or not anyone still watches."""
    network: str = ""
    """Empty: the engine's default."""
    read_only: bool = False
    raise_limits: bool = True
    """Set ulimits; a rootless engine may not."""
    memory_bytes: int = 0
    """0: no limit of its own."""
    pids: int = 0
    """Processes and threads; 0: no limit."""


def choose_shm(memory_bytes: int) -> int:
    """Half of the memory, from 1 to 64 GiB: it is a bound of a tmpfs and takes nothing until it is used."""
    return min(max(memory_bytes // 2, SMALLEST_SHM), LARGEST_SHM)


def container_arguments(spec: LaunchSpec) -> dict[str, Any]:
    """Arguments of ``containers.create``. Raises nothing: a spec is valid once it exists."""
    arguments: dict[str, Any] = {
        "image": spec.image,
        "entrypoint": _dead_mans_timer(spec.time_limit_s),
        "command": list(spec.arguments),
        "working_dir": spec.working_dir,
        "environment": {**spec.environment},
        "labels": dict(spec.labels),
        "mounts": [Mount(bind.path, bind.path, type="bind", read_only=bind.read_only) for bind in spec.binds],
        "init": True,
        "ipc_mode": "private",
        "shm_size": spec.shm_bytes,
        "security_opt": ["no-new-privileges"],
        "stdin_open": False,
        "tty": False,
    }
    arguments |= _limits(spec) | _sandbox(spec)
    gpus = _gpu_arguments(spec.gpus)
    arguments["environment"] |= gpus.pop("environment", {})
    return arguments | gpus


def _dead_mans_timer(limit_s: float) -> list[str]:
    """Coreutils' ``timeout``, which outlives a client that was killed.

    With ``--foreground`` it forwards signals to disttest alone, and not to the whole group a second time.
    """
    limits = ("--signal=TERM", f"--kill-after={CONTAINER_TERM_S}", f"{math.ceil(limit_s)}")
    return ["timeout", "--foreground", *limits, "disttest"]


def _limits(spec: LaunchSpec) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if spec.raise_limits:
        limits["ulimits"] = [
            Ulimit(name="memlock", soft=-1, hard=-1),
            Ulimit(name="stack", soft=STACK_BYTES, hard=STACK_BYTES),
        ]
    if spec.memory_bytes:
        # The same for memory and swap together: the engine would add as much swap as memory.
        limits |= {"mem_limit": spec.memory_bytes, "memswap_limit": spec.memory_bytes}
    # An engine has a limit of its own (Podman 2,048), unless it is told another one.
    limits["pids_limit"] = spec.pids or -1
    return limits


def _sandbox(spec: LaunchSpec) -> dict[str, Any]:
    sandbox: dict[str, Any] = {}
    if spec.user:
        sandbox["user"] = spec.user
        if not spec.user.startswith("0"):
            sandbox["cap_drop"] = ["ALL"]
    if spec.network:
        sandbox["network_mode"] = spec.network
    if spec.read_only:
        # Docker mounts a tmpfs noexec unless told otherwise, and compiled kernels are loaded from /tmp.
        sandbox |= {"read_only": True, "tmpfs": {"/tmp": "exec,mode=1777"}}  # noqa: S108 - inside the container
    if spec.gpus.way is not Way.PODMAN:
        sandbox["log_config"] = LogConfig(type="json-file", config={"max-size": "50m", "max-file": "2"})
    return sandbox


def _gpu_arguments(grant: GpuGrant) -> dict[str, Any]:
    everything = grant.devices == (ALL,)
    names = [f"{CDI_KIND}={device}" for device in grant.devices]
    match grant.way:
        case Way.NONE:
            return {"environment": _STEP_ASIDE}
        case Way.CDI:
            request = DeviceRequest(driver="cdi", device_ids=names)
            return {"device_requests": [request], "environment": _STEP_ASIDE}
        case Way.PODMAN:
            return {"devices": names, "environment": _STEP_ASIDE}
        case Way.RUNTIME:
            visible = ",".join(grant.devices)
            return {"runtime": "nvidia", "environment": {"NVIDIA_VISIBLE_DEVICES": visible}}
        case Way.REQUEST:
            chosen = {"count": -1} if everything else {"device_ids": list(grant.devices)}
            return {"device_requests": [DeviceRequest(capabilities=[["gpu"]], **chosen)]}
