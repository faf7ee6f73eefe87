"""The machine for which tests are collected: which worlds fit on it, and where their ranks compute."""

from __future__ import annotations

import ctypes
import os
import sys

from disttest.errors import NotEnoughDevices
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
"""Number of GPUs assumed for a runner of which nothing else is known."""


class TargetHost(Frozen):
    """Properties of the machine that collection needs."""

    gpus: int
    """Number of GPUs (or MIG slices) of this run."""
    device: str
    """``cpu`` or ``cuda``: where ranks compute in this run."""
    ranks_per_gpu: int = 1
    """Maximum number of ranks of one world on a GPU."""
    pool: int = 1
    """Number of machines like this one that a world may span."""
    nodes: int = 1
    """Number of machines for a world that sets none."""
    slices: bool = False
    """Whether the GPUs are MIG slices, which NCCL refuses."""
    gloo_on_cpu: bool = False
    """Whether the GPUs belong to NCCL in this run, so that worlds on gloo compute on the CPU."""

    def default_backend(self, device: str = "") -> str:
        """Return the best backend for a device, by default the device of the run."""
        return default_backend(device or self.device, slices=self.slices)

    def default_sizes(self, device: str = "") -> tuple[int, ...]:
        """Return the world sizes of a run that sets none: those that fit, times the machines of a world."""
        sizes: tuple[int, ...] = _CPU_SIZES
        if is_accelerator(device or self.device) and self.gpus:
            sizes = tuple(size for size in _GPU_SIZES if size <= self.gpus * self.ranks_per_gpu)
        return tuple(size * self.nodes for size in sizes)

    def device_for(self, backend: str) -> str:
        """Return where ranks on a backend compute, unless their test says it."""
        # Gloo alone does not decide: `--backend gloo` on GPUs tests it with CUDA tensors, and MIG slices have
        # no other backend.
        if self.gloo_on_cpu and backend == ANY_CPU_BACKEND:
            return CPU
        devices = backend_named(backend).devices or _registered_devices(backend)
        return CPU if devices and self.device not in devices and CPU in devices else self.device

    def refusal(self, shape: WorldShape) -> str:
        """Explain why a world of this shape cannot run here; empty if it can."""
        if shape.nodes > self.pool:
            found = "this machine is one" if self.pool == 1 else f"this pool has {self.pool}"
            return f"needs {shape.nodes} nodes for {shape}, {found}: run it on a cluster (--launcher NAME --nodes N)"
        backend = backend_named(shape.backend)
        if self.slices and not backend.takes_slices:
            return f"{backend.title} refuses MIG slices: --backend {ANY_CPU_BACKEND} runs there"
        if shape.ranks_per_node > self.gpus and (backend.needs_accelerator or shape.device != CPU):
            return self._sharing_refusal(shape, backend)
        return ""

    def _sharing_refusal(self, shape: WorldShape, backend: Backend) -> str:
        """Explain why a world with more ranks than GPUs cannot run here; empty if its ranks may share them."""
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
    """Return the machine for which tests are collected if nodes of a scheduler run them.

    Args:
        gpus: GPUs of a node.
        pool: number of nodes.
        nodes: number of nodes for a world that sets none.
        options: options of the run.
        scheduler: name of the scheduler for messages.

    Raises:
        NotEnoughDevices: worlds would span more nodes than exist.
    """
    if nodes > pool:
        raise NotEnoughDevices(
            f"--nodes {nodes}, and the pool has {pool} nodes that work ({scheduler}): ask for fewer, "
            "or for another partition"
        )
    device = options.device if options.device != AUTO else GPU if gpus else CPU
    return TargetHost(gpus=gpus, device=device, pool=pool, nodes=nodes)


def _registered_devices(backend: str) -> tuple[str, ...]:
    """Return the device types with which a backend was registered; empty if torch does not know it or is missing."""
    dist = sys.modules.get("torch.distributed")
    return tuple(dist.Backend.backend_capability.get(backend, ())) if dist and dist.is_available() else ()


def loaded_nccl() -> tuple[int, int, int] | None:
    """Return the version of the NCCL library that this process has loaded; None if it has loaded none."""
    # ``torch.cuda.nccl.version()`` returns the version that torch was built with. A different one runs if a newer
    # wheel is installed or ``LD_PRELOAD`` names one. The call initialises neither NCCL nor CUDA, so forks stay
    # possible.
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
        packed = ctypes.c_int()
        failed = library.ncclGetVersion(ctypes.byref(packed))
    except (OSError, AttributeError):
        return None
    return None if failed else unpack_version(packed.value)


def unpack_version(packed: int) -> tuple[int, int, int]:
    """Split ``NCCL_VERSION_CODE``: 23007 is 2.30.7."""
    # Up to 2.8 the major version counts thousands, later ten thousands.
    unit = 1000 if packed < 10000 else 10000
    return packed // unit, packed % unit // 100, packed % 100
