"""Detection of the machine: the CPU from the kernel, the GPUs from a probe in a bounded child."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from disttest.host.bounded import Ended, wait_children
from disttest.host.cpu import detect_host, read_text
from disttest.model import Frozen
from disttest.options.environment import environment
from disttest.plugins.gpus.limits import DRIVER_STALL_S, DRIVER_TOTAL_S
from disttest.plugins.gpus.machine import Fabric, Gpu, GpuMachine, Peer, used_by_others
from disttest.plugins.gpus.probe import (
    AnyMessage,
    Asking,
    Done,
    Driver,
    Found,
    Link,
    ProbeRefused,
    start_probe,
)
from disttest.plugins.gpus.torch_facts import TorchFacts, ask_torch

_AMAZON = "0x1d0f"
"""PCI vendor of EFA devices."""

LIBRARY = "libnvidia-ml.so.1"

_NOT_THERE = {9, 12}
"""NVML_ERROR_DRIVER_NOT_LOADED and NVML_ERROR_LIBRARY_NOT_FOUND: normal on a machine without GPUs."""

_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/lib/wsl/lib",
)

_decoder: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)


class Probe(Frozen):
    """How devices are queried and proved. Other values than the defaults are for disttest's own tests."""

    library: str = ""
    """Path of the NVML library; found by the dynamic linker unless given."""
    compute: str = "cuda"
    """Device type on which the preflight computes."""
    worker: str = ""
    """Module of the preflight's workers."""


def read_probe() -> Probe:
    """Return the probe that ``DISTTEST_PROBE`` describes as JSON."""
    text = environment().get("DISTTEST_PROBE")
    return msgspec.json.decode(text, type=Probe) if text else Probe()


def detect_machine(
    *,
    library: str = "",
    root: Path = Path("/"),
    timeout_s: float = DRIVER_TOTAL_S,
    stall_s: float = DRIVER_STALL_S,
) -> GpuMachine:
    """Detect the devices and limits of this process. No GPU, no driver and no NVML are ordinary results.

    Args:
        library: path of the NVML library; found by the dynamic linker unless given.
        root: directory with ``/proc``, ``/sys`` and ``/dev``.
        timeout_s: limit of all questions to the driver together.
        stall_s: limit of one answer of the driver. A GPU that takes longer is reported as broken. The first call on
            GPUs without persistence mode takes some seconds each.

    It never raises because of the state of the machine.
    """
    host = detect_host(root)
    nodes = device_nodes(root)
    probed = _Probed()
    # A child for the driver takes 20 to 140 ms, which a machine without GPUs need not pay in each run.
    if library or nodes or has_library(root):
        probed = _probe(library, timeout_s=timeout_s, stall_s=stall_s)
    gpus = probed.machine_gpus(root)
    # The device of ROCm's driver, which NVML does not know.
    if not gpus and (root / "dev/kfd").exists():
        gpus = _gpus_of_torch(ask_torch(timeout_s=timeout_s))
    return GpuMachine(
        cpu=host.cpu,
        limits=host.limits,
        cgroup=host.cgroup,
        # Memory that a test module allocated on a GPU at import belongs to this run.
        gpus=tuple(used_by_others(gpu, os.getpid()) for gpu in gpus),
        driver=probed.driver.driver or kernel_driver(root),
        cuda_driver=probed.driver.cuda,
        nvml=probed.driver.nvml,
        nvml_error=probed.error(has_nodes=bool(nodes)),
        device_nodes=nodes,
        fabrics=detect_fabrics(root),
    )


def _gpus_of_torch(facts: TorchFacts) -> tuple[Gpu, ...]:
    """Describe GPUs of another vendor (ROCm) by name only. Only torch can be asked about them."""
    return tuple(
        Gpu(index=index, name=name, device=facts.device_type) for index, name in enumerate(facts.devices)
    )


def device_nodes(root: Path = Path("/")) -> tuple[str, ...]:
    """List the device files of GPUs that are visible in this container."""
    found = sorted(root.glob("dev/nvidia*")) + sorted(root.glob("dev/dxg"))
    return tuple("/" + str(path.relative_to(root)) for path in found)


def has_library(root: Path = Path("/")) -> bool:
    """Return whether the dynamic linker could find NVML, without loading it."""
    if any((root / folder / LIBRARY).exists() for folder in _LIBRARY_FOLDERS):
        return True
    try:
        return LIBRARY.encode() + b"\0" in (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return False


def kernel_driver(root: Path = Path("/")) -> str:
    """Return the version of the loaded kernel module; empty if none is loaded."""
    # Format: NVRM version: NVIDIA UNIX x86_64 Kernel Module 550.54.15 Tue Mar 5 22:23:56 UTC 2024
    first, *_ = read_text(root / "proc/driver/nvidia/version").splitlines() or [""]
    return next((word for word in first.split() if word[0].isdigit() and "." in word), "")


class _Probed:
    """The results of one or more runs of the probe, during :func:`detect_machine`."""

    def __init__(self) -> None:
        self.driver = Driver(gpus=0)
        self.gpus: dict[int, Gpu] = {}
        self.links: dict[tuple[int, int], Link] = {}
        self.refused: ProbeRefused | None = None
        self.last = Asking(what="nothing yet")
        self.skip: list[int] = []
        self.done = False
        self.broken = ""

    # The probe names each GPU before it asks about it. After a hang or crash the GPU is known, and the others are
    # asked again.
    def on_line(self, line: bytes) -> None:
        """Handle one message. A line that is no message is output of the driver and is ignored."""
        try:
            message = _decoder.decode(line)
        except msgspec.DecodeError:
            return
        match message:
            case Asking():
                self.last = message
            case Driver():
                self.driver = message
            case Found(gpu=gpu):
                self.gpus[gpu.index] = gpu
            case Link():
                self.links[message.first, message.second] = message
            case ProbeRefused():
                self.refused = message
            case Done():
                self.done = True

    def blame(self, ended: Ended) -> bool:
        """Blame the GPU that was being asked when the probe ended; return whether asking the others makes sense."""
        # The driver fails before it gets to a single GPU, and would do so again.
        if self.last.gpu is None:
            self.broken = f"{self.last.what}: the NVML probe {ended}"
            return False
        known = self.gpus.get(self.last.gpu, Gpu(index=self.last.gpu))
        fault = f"the NVML probe {ended} when asked about this GPU"
        self.gpus[known.index] = msgspec.structs.replace(known, fault=fault)
        self.skip.append(known.index)
        return True

    def error(self, *, has_nodes: bool) -> str:
        if self.broken or self.refused is None:
            return self.broken
        if self.refused.code in _NOT_THERE and not has_nodes:
            return ""
        return self.refused.message

    def machine_gpus(self, root: Path) -> tuple[Gpu, ...]:
        names = _identities(root)
        gpus = sorted(self.gpus.values(), key=lambda gpu: gpu.index)
        # Both lists follow the bus. With one GPU missing in either, names would move to the wrong GPUs.
        if len(names) == len(gpus):
            gpus = [gpu if gpu.uuid else _named(gpu, name) for gpu, name in zip(gpus, names, strict=True)]
        return tuple(msgspec.structs.replace(gpu, peers=self._peers(gpu.index)) for gpu in gpus)

    def _peers(self, index: int) -> tuple[Peer, ...]:
        ends = [(link.second if link.first == index else link.first, link) for link in self.links.values()]
        return tuple(
            Peer(index=other, nvlinks=link.nvlinks, path=link.path)
            for other, link in ends
            if index in (link.first, link.second)
        )


def _named(gpu: Gpu, name: dict[str, str]) -> Gpu:
    return msgspec.structs.replace(gpu, **name)


def _probe(library: str, *, timeout_s: float, stall_s: float) -> _Probed:
    probed = _Probed()
    left_s = timeout_s
    while left_s > 0:
        child = start_probe(
            library=library, skip=probed.skip, timeout_s=left_s, stall_s=stall_s, on_line=probed.on_line
        )
        wait_children([child])
        ended = child.ended
        assert ended is not None
        left_s -= ended.elapsed_s
        if probed.done or probed.refused or not probed.blame(ended):
            break
    return probed


def _identities(root: Path) -> list[dict[str, str]]:
    """Read UUID, bus and name of each GPU from the kernel module, in the order of the bus."""
    # A GPU that no longer answers can still be named that way.
    folder = root / "proc/driver/nvidia/gpus"
    names = {"GPU UUID": "uuid", "Bus Location": "bus_id", "Model": "name"}
    # Lines like "Model: \t\t NVIDIA H200", "GPU UUID: \t GPU-8f2e…" and "Bus Location: \t 0000:1a:00.0".
    found = []
    for path in sorted(folder.glob("*/information")):
        pairs = (line.partition(":")[::2] for line in read_text(path).splitlines())
        found.append({names[key.strip()]: value.strip() for key, value in pairs if key.strip() in names})
    return found


def detect_fabrics(root: Path = Path("/")) -> tuple[Fabric, ...]:
    """List the RDMA devices: InfiniBand, RoCE and Amazon's EFA."""
    folder = root / "sys/class/infiniband"
    if not folder.is_dir():
        return ()
    return tuple(_fabric(device) for device in sorted(folder.iterdir()))


def _fabric(device: Path) -> Fabric:
    port = device / "ports/1"
    if read_text(device / "device/vendor") == _AMAZON:
        kind = "efa"
    else:
        kind = "roce" if read_text(port / "link_layer") == "Ethernet" else "infiniband"
    # The state has the form "4: ACTIVE".
    return Fabric(name=device.name, kind=kind, state=read_text(port / "state").partition(": ")[2])
