"""The table of backends and accelerators, the only place that names them. Pure.

A backend without a row, which a plugin or conftest registers at run time, runs like gloo on the devices that torch
was given at its registration. ``suites/features.py`` lists features that a backend lacks.
"""

from __future__ import annotations

from collections.abc import Iterable

from disttest.model import Frozen

CPU = "cpu"


class Backend(Frozen):
    """Properties of a backend of ``torch.distributed`` that planning and ranks need."""

    name: str
    devices: tuple[str, ...] = ()
    """Device types that its ranks may compute on; empty: any, or those of its registration."""
    shares_devices: bool = True
    """Whether two ranks may use one GPU. If not, each rank passes its own device to the group."""
    shares_from: tuple[int, ...] = ()
    """First version whose ranks may share a GPU with ``sharing_variables``; empty if no version does."""
    sharing_variables: tuple[tuple[str, str], ...] = ()
    """Environment of ranks that share a GPU. Variables that the user has set stay."""
    blocks_variable: str = ""
    """Variable that limits the thread blocks of a collective's kernel."""
    takes_slices: bool = True
    """Whether a rank may compute on a MIG slice."""
    queues: bool = False
    """Whether its collectives wait on the device while the rank continues."""
    label: str = ""
    """Its makers' spelling of the name."""

    @property
    def needs_accelerator(self) -> bool:
        """Whether it does not run on the CPU."""
        return bool(self.devices) and CPU not in self.devices

    @property
    def title(self) -> str:
        """Name in messages."""
        return self.label or self.name


class Accelerator(Frozen):
    """A kind of device that ranks compute on."""

    device: str
    """torch's device type."""
    backend: str
    """Default backend of worlds on it."""
    build: str
    """Build of torch that supports the device and the backend."""
    visible: str
    """Variable that selects the devices that a process sees."""


BACKENDS = (
    Backend(name="gloo"),
    Backend(
        name="nccl",
        devices=("cuda",),
        shares_devices=False,
        # The first release of NCCL that reads NCCL_MULTI_RANK_GPU_ENABLE.
        shares_from=(2, 30),
        # NVLS maps multicast memory once per device. Users report failures with several ranks on one; an H200 had none.
        sharing_variables=(("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("NCCL_NVLS_ENABLE", "0")),
        # Four ranks on one H200 hung with NCCL's default number of blocks.
        blocks_variable="NCCL_MAX_CTAS",
        takes_slices=False,
        queues=True,
        label="NCCL",
    ),
    Backend(name="xccl", devices=("xpu",), shares_devices=False, queues=True, label="XCCL"),
    Backend(name="hccl", devices=("hpu",), shares_devices=False, queues=True, label="HCCL"),
    Backend(name="ucc", label="UCC"),
    Backend(name="mpi", label="MPI"),
)

ACCELERATORS = (
    Accelerator(
        device="cuda",
        backend="nccl",
        build="a CUDA build, from download.pytorch.org/whl/cu130",
        visible="CUDA_VISIBLE_DEVICES",
    ),
)
"""Accelerators that a run can request. The first applies if GPUs are counted without naming a kind.

To add a kind, add a row here, and the devices in a plugin with ``disttest_make_devices``: NVML knows NVIDIA's only. The
preflight proves CUDA only. A machine has one kind.
"""

ANY_CPU_BACKEND = "gloo"
"""Backend of worlds on the CPU, and where an accelerator's own backend cannot run."""
DEVICES = (CPU, *(each.device for each in ACCELERATORS))
GPU = ACCELERATORS[0].device


def backend_named(name: str) -> Backend:
    """Return the row of a backend, or a default row."""
    return next((row for row in BACKENDS if row.name == name), Backend(name=name))


def accelerator_of(device: str) -> Accelerator:
    """Return the row of a device type, or the first row."""
    return next((each for each in ACCELERATORS if each.device == device), ACCELERATORS[0])


def default_backend(device: str, *, slices: bool = False) -> str:
    """Return the best backend for a device type; ``slices`` means that the devices are MIG slices."""
    # NCCL takes the slices of one GPU for one device: https://github.com/NVIDIA/nccl/issues/1716
    for accelerator in ACCELERATORS:
        if accelerator.device == device and (backend_named(accelerator.backend).takes_slices or not slices):
            return accelerator.backend
    return ANY_CPU_BACKEND


def accelerated(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the backends that do not run on the CPU."""
    return tuple(name for name in names if backend_named(name).needs_accelerator)


def is_accelerator(device: str) -> bool:
    """Return whether ``--device`` requests an accelerator."""
    return any(each.device == device for each in ACCELERATORS)


def visible_devices(shown: str) -> dict[str, str]:
    """Return the variables that restrict a process to these devices, for every kind of accelerator."""
    return {each.visible: shown for each in ACCELERATORS}


def build_of(backend: str) -> str:
    """Return the build of torch that has the backend; empty if unknown."""
    return next((each.build for each in ACCELERATORS if each.backend == backend), "")
