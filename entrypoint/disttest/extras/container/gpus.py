"""Which GPUs a container gets, and by which way: pure decisions over what host and engine say.

An explicit choice wins over the share that a runner pool has given (``NVIDIA_VISIBLE_DEVICES``), and that
over all. A share is never widened: what is chosen beyond it is refused.
"""

from __future__ import annotations

import re
from enum import StrEnum

from disttest.errors import NotEnoughDevices, UsageError
from disttest.model import Frozen

AUTO, ALL, NONE = "auto", "all", "none"
EMPTY_SHARES = ("", "void", NONE)
"""Values of NVIDIA_VISIBLE_DEVICES that name no GPU; ``void`` is what CDI leaves inside containers."""
CDI_KIND = "nvidia.com/gpu"


class Way(StrEnum):
    """How an engine hands out GPUs."""

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
    """What a container gets."""

    way: Way = Way.NONE
    devices: tuple[str, ...] = ()
    """UUIDs or indices; ``("all",)`` for all."""
    warning: str = ""
    """Why it got none although none was not asked for."""


class EngineGpus(Frozen):
    """What an engine says about GPUs."""

    cdi: tuple[str, ...] = ()
    """CDI devices that it has discovered, such as ``nvidia.com/gpu=0``."""
    runtime: bool = False
    """It has the runtime ``nvidia``."""
    podman: bool = False


def choose_gpus(
    asked: str,
    *,
    share: str | None,
    host: tuple[HostGpu, ...] | None,
    engine: EngineGpus,
) -> GpuGrant:
    """Choose.

    Args:
        asked: ``auto``, ``all``, ``none``, a count, or indices and UUIDs with commas between; a single index
            is written ``device=3``, as for Docker.
        share: the runner's NVIDIA_VISIBLE_DEVICES; None where it is not set.
        host: this host's GPUs; None where they cannot be asked (an engine elsewhere).
        engine: what the engine can do.

    Raises:
        NotEnoughDevices: GPUs were asked for by count or as ``all``, and are not there.
        UsageError: ``asked`` makes no sense, or goes beyond the share.
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
    """UUIDs (or names) that may be used; None: whatever the engine has."""
    known = None if host is None else tuple(gpu.uuid for gpu in host)
    if share is None or share == ALL:
        return known
    if share in EMPTY_SHARES:
        return ()
    return tuple(_uuid_of(name.strip(), host) for name in share.split(",") if name.strip())


def _uuid_of(name: str, host: tuple[HostGpu, ...] | None) -> str:
    """The UUID of an index, where the host is known; UUIDs may be shortened, as CUDA allows."""
    for gpu in host or ():
        if name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)):
            return gpu.uuid
    return name


def _auto(allowed: tuple[str, ...] | None, engine: EngineGpus) -> GpuGrant:
    if allowed == ():
        return GpuGrant(warning="no GPU on this host or in this runner's share: running on CPU")
    if not engine.cdi and not engine.runtime and not engine.podman:
        if allowed is None:
            return GpuGrant(warning="the engine knows of no GPU: running on CPU")
        return GpuGrant(
            warning="this host has GPUs, but its engine cannot hand them out"
            " (install nvidia-container-toolkit): running on CPU"
        )
    if allowed is None and not engine.cdi and not engine.runtime:
        return GpuGrant(warning="the engine knows of no GPU: running on CPU")
    return _grant(allowed if allowed is not None else (ALL,), engine)


def _first(allowed: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    if count == 0:
        raise UsageError("--gpus 0: say --gpus none to run without GPUs")
    _require(allowed, count)
    return allowed[:count] if allowed is not None else tuple(str(index) for index in range(count))


def _require(allowed: tuple[str, ...] | None, count: int) -> None:
    if allowed is not None and len(allowed) < count:
        raise NotEnoughDevices(
            f"{count} GPU{'s' if count > 1 else ''} asked for, {len(allowed)} here: take a runner with more,"
            " or run with --gpus auto"
        )


def _named(
    asked: str, allowed: tuple[str, ...] | None, host: tuple[HostGpu, ...] | None, share: str | None
) -> tuple[str, ...]:
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if not re.fullmatch(r"\d+(:\d+)?|(GPU|MIG)-[0-9A-Za-z/-]+", name):
            raise UsageError(f"--gpus: {name!r} is not auto, all, none, a count, an index or a GPU's UUID")
    uuids = tuple(dict.fromkeys(_uuid_of(name, host) for name in names))
    beyond = [uuid for uuid in uuids if share not in (None, ALL) and uuid not in (allowed or ())]
    if beyond:
        raise UsageError(
            f"--gpus: {beyond[0]} is not in this runner's share (NVIDIA_VISIBLE_DEVICES={share})"
        )
    return uuids


def _grant(devices: tuple[str, ...], engine: EngineGpus) -> GpuGrant:
    if engine.podman:
        return GpuGrant(way=Way.PODMAN, devices=devices)
    if engine.cdi:
        return GpuGrant(way=Way.CDI, devices=devices)
    return GpuGrant(way=Way.RUNTIME if engine.runtime else Way.REQUEST, devices=devices)
