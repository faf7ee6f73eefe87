"""Choose the GPUs of a container and the way to hand them out. Pure functions.

An explicit choice takes precedence over the runner's share (``NVIDIA_VISIBLE_DEVICES``), and the share over all GPUs. A
choice beyond the share is refused.
"""

from __future__ import annotations

import re
from enum import StrEnum

from disttest.errors import NotEnoughDevices, UsageError
from disttest.model import Frozen

AUTO, ALL, NONE = "auto", "all", "none"
# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
EMPTY_SHARES = ("", "void", NONE)
"""Values of NVIDIA_VISIBLE_DEVICES that name no GPU; CDI leaves ``void`` inside containers."""
CDI_KIND = "nvidia.com/gpu"


class Way(StrEnum):
    """Way in which an engine hands out GPUs."""

    NONE = "none"
    CDI = "cdi"
    RUNTIME = "nvidia-runtime"
    REQUEST = "device-request"
    PODMAN = "podman-cdi"


class HostGpu(Frozen):
    """A GPU of this host, as NVML names it."""

    index: int
    uuid: str


class GpuGrant(Frozen):
    """GPUs granted to a container."""

    way: Way = Way.NONE
    devices: tuple[str, ...] = ()
    """UUIDs or indices; ``("all",)`` for all."""
    warning: str = ""
    """Reason why it got none although GPUs were wanted."""


class EngineGpus(Frozen):
    """GPU support of an engine."""

    cdi: tuple[str, ...] = ()
    """CDI devices that it has discovered, such as ``nvidia.com/gpu=0``."""
    runtime: bool = False
    """Whether it has the runtime ``nvidia``."""
    podman: bool = False


def choose_gpus(
    asked: str,
    *,
    share: str | None,
    host: tuple[HostGpu, ...] | None,
    engine: EngineGpus,
) -> GpuGrant:
    """Choose the GPUs of a container.

    Args:
        asked: ``auto``, ``all``, ``none``, a count, or indices and UUIDs separated by commas; a single index is written
            ``device=3``, as in Docker.
        share: the runner's NVIDIA_VISIBLE_DEVICES; None if it is not set.
        host: GPUs of this host; None if the engine is on another one.
        engine: GPU support of the engine.

    Raises:
        NotEnoughDevices: GPUs are required by count or as ``all``, and are missing.
        UsageError: ``asked`` is invalid, or exceeds the share.
    """
    asked = asked.strip().lower() if asked.strip().lower() in (AUTO, ALL, NONE) else asked.strip()
    if asked == NONE:
        return GpuGrant()
    allowed = _allowed(share, host)
    if asked == AUTO:
        return _auto(allowed, engine)
    if asked == ALL:
        _require(allowed, 1)
        return _grant(allowed if allowed is not None else (ALL,), engine)
    if asked.isdigit():
        return _grant(_first(allowed, int(asked)), engine)
    return _grant(_named(asked.removeprefix("device="), allowed, host, share), engine)


def _allowed(share: str | None, host: tuple[HostGpu, ...] | None) -> tuple[str, ...] | None:
    """Return the UUIDs (or names) that may be used; None for all that the engine has."""
    known = None if host is None else tuple(gpu.uuid for gpu in host)
    if share is None or share == ALL:
        return known
    if share in EMPTY_SHARES:
        return ()
    return tuple(_uuid_of(name.strip(), host) for name in share.split(",") if name.strip())


def _uuid_of(name: str, host: tuple[HostGpu, ...] | None) -> str:
    """Return the UUID of an index if the host is known; UUIDs may be shortened, as in CUDA."""
    for gpu in host or ():
        if name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)):
            return gpu.uuid
    return name


def _auto(allowed: tuple[str, ...] | None, engine: EngineGpus) -> GpuGrant:
    if allowed == ():
        return GpuGrant(warning="no GPU on this host or in this runner's share; running on the CPU")
    if not engine.cdi and not engine.runtime and not engine.podman:
        if allowed is None:
            return GpuGrant(warning="the engine reports no GPU; running on the CPU")
        return GpuGrant(
            warning="this host has GPUs, but its engine cannot pass them to containers; running on the CPU"
            " (install nvidia-container-toolkit to use them)"
        )
    # For a Podman on another host, nothing reports whether it has GPUs.
    if allowed is None and not engine.cdi and not engine.runtime:
        return GpuGrant(warning="the engine reports no GPU; running on the CPU")
    return _grant(allowed if allowed is not None else (ALL,), engine)


def _first(allowed: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    if count == 0:
        raise UsageError("--gpus 0 is invalid; use --gpus none to run without GPUs")
    _require(allowed, count)
    return allowed[:count] if allowed is not None else tuple(str(index) for index in range(count))


def _require(allowed: tuple[str, ...] | None, count: int) -> None:
    if allowed is not None and len(allowed) < count:
        raise NotEnoughDevices(
            f"{count} GPU{'s' if count > 1 else ''} requested, but only {len(allowed)} available; use a runner with more,"
            " or --gpus auto"
        )


def _named(
    asked: str, allowed: tuple[str, ...] | None, host: tuple[HostGpu, ...] | None, share: str | None
) -> tuple[str, ...]:
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        # 0:1 is a MIG slice by its numbers, as NVIDIA_VISIBLE_DEVICES may name it.
        if not re.fullmatch(r"\d+(:\d+)?|(GPU|MIG)-[0-9A-Za-z/-]+", name):
            raise UsageError(f"--gpus: {name!r} is not auto, all, none, a count, an index or a GPU's UUID")
    # An index and a UUID may name the same GPU.
    uuids = tuple(dict.fromkeys(_uuid_of(name, host) for name in names))
    beyond = [uuid for uuid in uuids if share not in (None, ALL) and uuid not in (allowed or ())]
    if beyond:
        raise UsageError(
            f"--gpus: {beyond[0]} is not in this runner's share (NVIDIA_VISIBLE_DEVICES={share}); choose one of the share"
        )
    return uuids


def _grant(devices: tuple[str, ...], engine: EngineGpus) -> GpuGrant:
    if engine.podman:
        return GpuGrant(way=Way.PODMAN, devices=devices)
    if engine.cdi:
        return GpuGrant(way=Way.CDI, devices=devices)
    return GpuGrant(way=Way.RUNTIME if engine.runtime else Way.REQUEST, devices=devices)
