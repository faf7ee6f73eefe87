"""The GPUs of a machine as frozen data, as NVML describes them.

Sizes are in bytes. Values that could not be read keep their defaults; ``fault`` (one GPU) or ``nvml_error`` (the
machine) gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from disttest.host.machine import Machine
from disttest.model import Frozen, Hardware, Slot


class GpuProcess(Frozen):
    """A process that holds memory of a GPU."""

    pid: int
    """Pid as NVML reports it. In a container with its own pid namespace it may be a number of the host."""
    memory: int = 0
    name: str = ""
    computes: bool = True
    """False for a desktop's process that only draws, and for an MPS server. Neither alone makes a GPU busy."""


class MigSlice(Frozen):
    """A GPU instance of a GPU in MIG mode. CUDA treats it as a separate device."""

    uuid: str
    number: int = 0
    """Index among the slices of its GPU."""
    name: str = ""
    memory_total: int = 0
    memory_used: int = 0
    processes: tuple[GpuProcess, ...] = ()
    """Processes that hold memory of this slice; empty if the driver does not report slices."""


class Peer(Frozen):
    """The connection from a GPU to another one."""

    index: int
    """Index of the other GPU."""
    nvlinks: int = 0
    """Number of active NVLink connections between the two (through a switch: all of the GPU's active links)."""
    path: str = ""
    """Nearest common ancestor on PCIe: internal, single, multiple, hostbridge, node or system."""


class Gpu(Frozen):
    """A GPU as its driver describes it. Unknown values keep their defaults."""

    index: int
    """NVML's index, in order of the PCI bus, which is CUDA's order under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``."""
    uuid: str = ""
    name: str = ""
    device: str = "cuda"
    """torch's device type."""
    bus_id: str = ""
    minor: int | None = None
    """N of ``/dev/nvidiaN``."""
    memory_total: int = 0
    memory_used: int = 0
    compute_capability: str = ""
    mig_enabled: bool = False
    mig_pending: bool = False
    """The mode changes at the next reset of the GPU."""
    slices: tuple[MigSlice, ...] = ()
    ecc_enabled: bool | None = None
    ecc_uncorrected: int = 0
    """Uncorrected errors since the driver was loaded."""
    ecc_corrected: int = 0
    remapped_rows: int = 0
    """Rows remapped because of uncorrectable errors."""
    remap_pending: bool = False
    remap_failed: bool = False
    retired_pages_pending: bool = False
    throttle: tuple[str, ...] = ()
    """Reasons for which clocks are reduced now; idling is not one."""
    temperature_c: int | None = None
    persistence: bool | None = None
    compute_mode: str = ""
    """default, prohibited or exclusive_process."""
    pcie_generation: int = 0
    pcie_width: int = 0
    pcie_max_generation: int = 0
    pcie_max_width: int = 0
    nvlinks_active: int = 0
    nvlinks_down: int = 0
    peers: tuple[Peer, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    fault: str = ""
    """NVML's reason why the GPU cannot be used: lost, hangs, needs a reset. Empty for a usable one."""
    only_slice: str = ""
    """UUID of a MIG slice if memory and processes are those of that slice; see :func:`part_for`."""

    @property
    def label(self) -> str:
        """Name of the GPU in messages: ``GPU 3 (GPU-8f2e…, 00000000:1A:00.0)``."""
        known = ", ".join(part for part in (self.uuid, self.bus_id) if part)
        whole = f"GPU {self.index} ({known})" if known else f"GPU {self.index}"
        return f"MIG slice {self.only_slice} of {whole}" if self.only_slice else whole


class Fabric(Frozen):
    """An RDMA device."""

    name: str
    kind: str = "infiniband"
    """infiniband, roce or efa."""
    state: str = ""


class GpuMachine(Machine):
    """This machine with its GPUs, or the share of it that this process may use."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    """Version of the NVIDIA kernel driver."""
    cuda_driver: str = ""
    """Newest CUDA version that the driver serves."""
    nvml: str = ""
    nvml_error: str = ""
    """Reason why NVML cannot be asked; empty if it answered or there is nothing to ask."""
    device_nodes: tuple[str, ...] = ()
    """``/dev/nvidia*`` that are visible in this container."""
    fabrics: tuple[Fabric, ...] = ()

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that NVML does not report as broken."""
        return tuple(gpu for gpu in self.gpus if not gpu.fault)

    def slots(self, device: str, limit: int | None = None) -> tuple[Slot, ...]:
        """Return the first ``limit`` slots of a device type of torch (``cpu``, ``cuda``)."""
        if device == "cpu":
            return super().slots(device, limit)
        return tuple(slot for slot in self.gpu_slots() if slot.device == device)[:limit]

    def gpu_slots(self) -> tuple[Slot, ...]:
        """Return the slots of all usable GPUs, of any type."""
        groups = group_gpus(self.gpus)
        return tuple(slot for gpu in self.usable_gpus for slot in slots_of(gpu, groups[gpu.index]))

    def restricted_to(self, visible: str) -> GpuMachine:
        """Return this machine with only the GPUs that a value of ``CUDA_VISIBLE_DEVICES`` names, in its order."""
        # As in CUDA, the list ends at the first entry that names no GPU.
        chosen: list[Gpu] = []
        for entry in (part.strip() for part in visible.split(",")):
            gpu = next((named for gpu in self.gpus if (named := _named(entry, gpu))), None)
            if gpu is None or gpu in chosen:
                break
            chosen.append(gpu)
        return msgspec.structs.replace(self, gpus=_one_of_each(chosen))

    def hardware(self) -> Hardware:
        """Return the part of the machine's data that reports show."""
        return msgspec.structs.replace(
            super().hardware(),
            gpus=tuple(gpu.name for gpu in self.gpus),
            driver=self.driver,
            cuda=self.cuda_driver,
            uuids=tuple(gpu.uuid for gpu in self.gpus),
        )


def slots_of(gpu: Gpu, group: str = "") -> tuple[Slot, ...]:
    """Return the slots of a GPU: the GPU, or its slices in MIG mode."""
    if not gpu.mig_enabled:
        return (
            Slot(name=f"gpu:{gpu.index}", device=gpu.device, index=gpu.index, uuid=gpu.uuid, group=group),
        )
    return tuple(
        Slot(
            name=f"gpu:{gpu.index}.{part.number}",
            device=gpu.device,
            index=gpu.index,
            uuid=part.uuid,
            group=group,
        )
        for part in gpu.slices
    )


def key_of(slot: Slot) -> str:
    """Return the name of a slot in the lease directory: its UUID, or ``gpu-3`` if the driver has none (ROCm)."""
    return slot.uuid or slot.name.replace(":", "-")


def is_slice(slot: Slot) -> bool:
    """Return whether a slot is a MIG slice. A slice has no peers, and NCCL refuses it."""
    return slot.device != "cpu" and "." in slot.name


def used_by_others(gpu: Gpu, pid: int) -> Gpu:
    """Return a GPU without the memory and processes that one process holds on it and on its slices."""
    own = [process for process in gpu.processes if process.pid == pid]
    if not own and not gpu.slices:
        return gpu
    return msgspec.structs.replace(
        gpu,
        memory_used=max(0, gpu.memory_used - sum(process.memory for process in own)),
        processes=tuple(process for process in gpu.processes if process not in own),
        slices=tuple(_slice_of_others(part, pid) for part in gpu.slices),
    )


def _slice_of_others(part: MigSlice, pid: int) -> MigSlice:
    own = [process for process in part.processes if process.pid == pid]
    return msgspec.structs.replace(
        part,
        memory_used=max(0, part.memory_used - sum(process.memory for process in own)),
        processes=tuple(process for process in part.processes if process not in own),
    )


def part_for(slot: Slot, gpu: Gpu) -> Gpu:
    """Return the part of a GPU that a slot covers. For a MIG slice, memory and processes are those of the slice."""
    # NVML answers both for the handle of a slice. Where it refuses the list of processes, memory that stays in use
    # shows them.
    if not is_slice(slot) or gpu.fault:
        return gpu
    found = next((part for part in gpu.slices if part.uuid == slot.uuid), None)
    part = found or MigSlice(uuid=slot.uuid)
    seen = msgspec.structs.replace(
        gpu,
        only_slice=slot.uuid,
        memory_total=part.memory_total,
        memory_used=part.memory_used,
        processes=part.processes,
    )
    gone = f"{seen.label} has vanished from the driver's list"
    return seen if found else msgspec.structs.replace(seen, fault=gone)


_NEAR = ("internal", "single", "multiple", "hostbridge", "node")
"""PCIe paths that do not cross the link between processors."""


def doubtful_order(machine: GpuMachine, visible: str, order: str) -> str:
    """Explain that CUDA may number the GPUs of this machine otherwise than NVML; empty if it does not.

    Args:
        machine: all GPUs of the machine.
        visible: value of ``CUDA_VISIBLE_DEVICES``.
        order: value of ``CUDA_DEVICE_ORDER``.
    """
    # CUDA's default is FASTEST_FIRST: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
    by_number = visible.strip()[:1].isdigit() and order != "PCI_BUS_ID"
    if not by_number or len({gpu.name for gpu in machine.gpus if gpu.uuid}) < 2:
        return ""
    return (
        f"CUDA_VISIBLE_DEVICES={visible} was read in the order of the PCI bus, and CUDA may count the fastest GPU first: "
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"
    )


def group_gpus(gpus: Sequence[Gpu]) -> dict[int, str]:
    """Return the index of each GPU, mapped to the name of its group of near GPUs."""
    # Near are GPUs that reach each other by NVLink; without any NVLink, those behind one processor.
    # Named sets instead of a matrix of distances: NVLink islands, NUMA nodes and bridges are sets, and a choice by
    # sets takes microseconds with 512 GPUs.
    linked = any(peer.nvlinks for gpu in gpus for peer in gpu.peers)
    groups: dict[int, str] = {}
    for gpu in gpus:
        if gpu.index not in groups:
            name = f"{'nvlink' if linked else 'numa'}:{gpu.index}"
            groups.update(dict.fromkeys(_reach(gpu, gpus, linked=linked), name))
    return groups


def _reach(start: Gpu, gpus: Sequence[Gpu], *, linked: bool) -> set[int]:
    by_index = {gpu.index: gpu for gpu in gpus}
    reached, open_ends = {start.index}, [start]
    while open_ends:
        for peer in open_ends.pop().peers:
            near = peer.nvlinks > 0 if linked else peer.path in _NEAR
            if near and peer.index in by_index and peer.index not in reached:
                reached.add(peer.index)
                open_ends.append(by_index[peer.index])
    return reached


def _named(entry: str, gpu: Gpu) -> Gpu | None:
    """Return the part of a GPU that an entry names. For a slice, the GPU has that slice alone."""
    if entry.isdigit():
        return gpu if int(entry) == gpu.index else None
    if entry.startswith("GPU-"):
        # CUDA accepts the beginning of a UUID, too.
        return gpu if gpu.uuid.startswith(entry) else None
    slices = tuple(part for part in gpu.slices if entry.startswith("MIG-") and part.uuid.startswith(entry))
    return msgspec.structs.replace(gpu, slices=slices[:1]) if slices else None


def _one_of_each(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Join several entries for slices of one GPU into one GPU with these slices."""
    merged: dict[int, Gpu] = {}
    for gpu in gpus:
        known = merged.get(gpu.index)
        slices = gpu.slices if known is None else (*known.slices, *gpu.slices)
        merged[gpu.index] = msgspec.structs.replace(gpu, slices=slices)
    return tuple(merged.values())
