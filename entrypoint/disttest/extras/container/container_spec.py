"""Specification of a container as frozen data, and its translation for the Docker SDK."""

from __future__ import annotations

import math
from typing import Any

from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from disttest.extras.container.gpus import ALL, CDI_KIND, GpuGrant, Way
from disttest.extras.container.limits import CONTAINER_LIMIT_S, CONTAINER_TERM_S
from disttest.model import Frozen

# The stack limit that NVIDIA's own images ask for at their start (`--ulimit stack=67108864`).
STACK_BYTES = 64 * 1024**2
GIB = 1024**3
SMALLEST_SHM = GIB
LARGEST_SHM = 64 * GIB


_STEP_ASIDE = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Overrides the image's ``all``, which is meant for hosts with NVIDIA's default runtime: that runtime adds nothing."""


class Bind(Frozen):
    """A folder or file of the host, mounted under the same path."""

    path: str
    read_only: bool = False


class LaunchSpec(Frozen):
    """A container before its creation."""

    image: str
    arguments: tuple[str, ...]
    """Arguments of ``disttest``."""
    working_dir: str
    binds: tuple[Bind, ...] = ()
    environment: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    labels: dict[str, str] = {}  # noqa: RUF012
    gpus: GpuGrant = GpuGrant()
    user: str = ""
    """``uid:gid``; empty for the image's user."""
    shm_bytes: int = SMALLEST_SHM
    time_limit_s: float = CONTAINER_LIMIT_S
    """Time after which the container ends on its own, even without a launcher."""
    network: str = ""
    """Empty for the engine's default."""
    read_only: bool = False
    raise_limits: bool = True
    """Whether to set ulimits, which a rootless engine may not."""
    memory_bytes: int = 0
    """0 for no limit."""
    pids: int = 0
    """Limit of processes and threads; 0 for no limit."""


def choose_shm(memory_bytes: int) -> int:
    """Return half of the memory, from 1 to 64 GiB. A tmpfs occupies nothing until it is used."""
    return min(max(memory_bytes // 2, SMALLEST_SHM), LARGEST_SHM)


def container_arguments(spec: LaunchSpec) -> dict[str, Any]:
    """Make the arguments of ``containers.create``."""
    arguments: dict[str, Any] = {
        "image": spec.image,
        "entrypoint": _dead_mans_timer(spec.time_limit_s),
        "command": list(spec.arguments),
        "working_dir": spec.working_dir,
        "environment": {**spec.environment},
        "labels": dict(spec.labels),
        # A mount whose source is missing is refused. `volumes` would create the source as a folder of root.
        "mounts": [Mount(bind.path, bind.path, type="bind", read_only=bind.read_only) for bind in spec.binds],
        # Ranks may leave orphans, which process 1 must reap. `timeout` waits for its own child only.
        "init": True,
        # The engine ignores shm_size for a container that shares the IPC namespace of the host.
        "ipc_mode": "private",
        # NCCL shares memory between processes through /dev/shm; the engine's default of 64 MiB is too small:
        # https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
        "shm_size": spec.shm_bytes,
        "security_opt": ["no-new-privileges"],
        "stdin_open": False,
        # With a terminal, the engine sends one stream, and standard error would arrive as standard output.
        "tty": False,
    }
    arguments |= _limits(spec) | _sandbox(spec)
    gpus = _gpu_arguments(spec.gpus)
    arguments["environment"] |= gpus.pop("environment", {})
    return arguments | gpus


def _dead_mans_timer(limit_s: float) -> list[str]:
    """Make the entrypoint: coreutils' ``timeout``, which survives a killed client.

    With ``--foreground`` it forwards signals only to disttest, not to the whole group a second time. Its exit code 124
    is also disttest's code for a deadline. https://www.gnu.org/software/coreutils/timeout
    """
    limits = ("--signal=TERM", f"--kill-after={CONTAINER_TERM_S}", f"{math.ceil(limit_s)}")
    return ["timeout", "--foreground", *limits, "disttest"]


def _limits(spec: LaunchSpec) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if spec.raise_limits:
        limits["ulimits"] = [
            # NCCL pins memory.
            Ulimit(name="memlock", soft=-1, hard=-1),
            Ulimit(name="stack", soft=STACK_BYTES, hard=STACK_BYTES),
        ]
    if spec.memory_bytes:
        # memswap_limit counts memory and swap together; without it the engine adds as much swap as memory:
        # https://docs.docker.com/engine/containers/resource_constraints/
        limits |= {"mem_limit": spec.memory_bytes, "memswap_limit": spec.memory_bytes}
    # Without a value the engine's own limit applies. Podman's, 2,048, is reached by a few worlds:
    # https://github.com/podman-container-tools/podman/pull/16546
    limits["pids_limit"] = spec.pids or -1
    return limits


def _sandbox(spec: LaunchSpec) -> dict[str, Any]:
    sandbox: dict[str, Any] = {}
    if spec.user:
        sandbox["user"] = spec.user
        # Root keeps its capabilities: without DAC_OVERRIDE it could not write another user's workspace.
        if not spec.user.startswith("0"):
            sandbox["cap_drop"] = ["ALL"]
    if spec.network:
        sandbox["network_mode"] = spec.network
    if spec.read_only:
        # Docker mounts a tmpfs noexec by default, but torch loads compiled kernels from /tmp:
        # https://github.com/moby/moby/issues/35890
        sandbox |= {"read_only": True, "tmpfs": {"/tmp": "exec,mode=1777"}}  # noqa: S108 - inside the container
    if spec.gpus.way is not Way.PODMAN:
        # The launcher reads the attached stream. This copy would grow without a limit, on the engine's disk.
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
