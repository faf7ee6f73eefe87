"""The machine that tests are collected for: which worlds it has room for, and where their ranks compute."""

from __future__ import annotations

import sys

from disttest.errors import NotEnoughDevices
from disttest.host.devices.nccl import loaded_nccl
from disttest.model import Frozen, WorldShape
from disttest.options.run import RunOptions
from disttest.options.values import AUTO
from disttest.planning.backends import (
    ANY_CPU_BACKEND,
    CPU,
    GPU,
    Backend,
    backend_named,
    default_backend,
    is_accelerator,
)

_CPU_SIZES = (1, 2, 4)
_GPU_SIZES = (1, 2, 4, 8)
MOST_GPUS = _GPU_SIZES[-1]
"""GPUs of a runner of which nothing else is known."""


class TargetHost(Frozen):
    """What the collection needs to know of the machine."""

    gpus: int
    """GPUs (or MIG slices) of this run."""
    device: str
    """``cpu`` or ``cuda``: where ranks compute in this run."""
    ranks_per_gpu: int = 1
    """Ranks of one world that may share a GPU."""
    pool: int = 1
    """Machines like this one that a world may span."""
    nodes: int = 1
    """Over how many of them a world is spread that does not say so itself."""
    slices: bool = False
    """The GPUs are MIG slices, which NCCL refuses."""
    gloo_on_cpu: bool = False
    """The GPUs are NCCL's in this run: worlds on gloo compute on the CPU beside them."""

    def default_backend(self, device: str = "") -> str:
        """The best backend for a device, by default that of the run."""
        return default_backend(device or self.device, slices=self.slices)

    def default_sizes(self, device: str = "") -> tuple[int, ...]:
        """World sizes of a run that names none: those that fit, times the machines that a world is spread over."""
        sizes: tuple[int, ...] = _CPU_SIZES
        if is_accelerator(device or self.device) and self.gpus:
            sizes = tuple(size for size in _GPU_SIZES if size <= self.gpus * self.ranks_per_gpu)
        return tuple(size * self.nodes for size in sizes)

    def device_for(self, backend: str) -> str:
        """Where ranks on a backend compute, unless their test says it."""
        if self.gloo_on_cpu and backend == ANY_CPU_BACKEND:
            return CPU
        devices = backend_named(backend).devices or _registered_devices(backend)
        return CPU if devices and self.device not in devices and CPU in devices else self.device

    def refusal(self, shape: WorldShape) -> str:
        """Why a world of this shape cannot run here; empty when it can."""
        if shape.nodes > self.pool:
            found = "this machine is one" if self.pool == 1 else f"this pool has {self.pool}"
            return f"needs {shape.nodes} nodes for {shape}, {found}: run it with --launcher slurm (or kubernetes) --nodes N"
        backend = backend_named(shape.backend)
        if self.slices and not backend.takes_slices:
            return f"{backend.title} refuses MIG slices: --backend {ANY_CPU_BACKEND} runs there"
        if shape.ranks_per_node > self.gpus and (backend.needs_accelerator or shape.device != CPU):
            return self._sharing_refusal(shape, backend)
        return ""

    def _sharing_refusal(self, shape: WorldShape, backend: Backend) -> str:
        """Why a world with more ranks than GPUs cannot run here; empty if its ranks may share them."""
        if shape.nodes > 1:
            return f"needs {shape.ranks_per_node} GPUs on each node for {shape}, they have {self.gpus}"
        needed = f"needs {shape.size} GPUs for {shape}, this machine has {self.gpus}"
        if shape.size > self.gpus * self.ranks_per_gpu or self.slices:
            return needed
        if backend.shares_devices:
            return ""
        if not backend.shares_from:
            return f"{needed}, and {backend.title} refuses several ranks on a GPU"
        loaded = loaded_nccl()
        if loaded and loaded < backend.shares_from:
            first, found = (".".join(map(str, version)) for version in (backend.shares_from, loaded))
            return (
                f"{needed}; --ranks-per-gpu needs {backend.title} {first}, and {found} is loaded: "
                "install torch 2.14.1 or newer"
            )
        return ""


def host_of_nodes(
    *, gpus: int, pool: int, nodes: int, options: RunOptions, scheduler: str = ""
) -> TargetHost:
    """The machine that tests are collected for if nodes of a scheduler run them.

    Args:
        gpus: GPUs of a node.
        pool: nodes that there are.
        nodes: over how many a world is spread that does not say so itself.
        options: of the run.
        scheduler: its name for messages.

    Raises:
        NotEnoughDevices: worlds are to span more nodes than there are.
    """
    if nodes > pool:
        raise NotEnoughDevices(
            f"--nodes {nodes}, and the pool has {pool} nodes that work ({scheduler}): ask for fewer, "
            "or for another partition"
        )
    device = options.device if options.device != AUTO else GPU if gpus else CPU
    return TargetHost(gpus=gpus, device=device, pool=pool, nodes=nodes)


def _registered_devices(backend: str) -> tuple[str, ...]:
    """The device types that a backend was registered with at run time; empty where torch does not know it, or is not here."""
    dist = sys.modules.get("torch.distributed")
    return tuple(dist.Backend.backend_capability.get(backend, ())) if dist and dist.is_available() else ()
