"""The table of backends and accelerators: the only place that knows one of them by its name. Pure.

A backend that is registered at run time and has no row here runs like gloo, on the devices that torch was told of
when it was registered. What a backend cannot do is said in ``suites/features.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from disttest.model import Frozen

CPU = "cpu"


class Backend(Frozen):
    """What planning and ranks have to know of a backend of ``torch.distributed``."""

    name: str
    devices: tuple[str, ...] = ()
    """Device types that its ranks may compute on; empty: any, or what it was registered with."""
    shares_devices: bool = True
    """Whether two ranks may use one GPU. Where not, a rank tells its group which one is its own."""
    shares_from: tuple[int, ...] = ()
    """First version whose ranks may share a GPU if ``sharing_variables`` are set; empty: no version does."""
    sharing_variables: tuple[tuple[str, str], ...] = ()
    """Environment of ranks that share a GPU. What the user has set is left alone."""
    blocks_variable: str = ""
    """Variable that limits the thread blocks of a collective's kernel."""
    takes_slices: bool = True
    """Whether a rank may compute on a MIG slice."""
    queues: bool = False
    """Whether its collectives wait on the device while the rank goes on."""
    label: str = ""
    """How its makers write it."""

    @property
    def needs_accelerator(self) -> bool:
        """Whether it does not run on the CPU."""
        return bool(self.devices) and CPU not in self.devices

    @property
    def title(self) -> str:
        """How messages write it."""
        return self.label or self.name


class Accelerator(Frozen):
    """A kind of device that ranks compute on."""

    device: str
    """torch's device type."""
    backend: str
    """What worlds use there unless told otherwise."""
    build: str
    """Which build of torch has both."""
    visible: str
    """The variable that says which of them a process sees."""


BACKENDS = (
    Backend(name="gloo"),
    Backend(
        name="nccl",
        devices=("cuda",),
        shares_devices=False,
        shares_from=(2, 30),
        # NVLS maps multicast memory once per device. Users report failures with several ranks on one; an H200 had none.
        sharing_variables=(("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("NCCL_NVLS_ENABLE", "0")),
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
"""Those that a machine can be asked for; the first is meant where GPUs are counted and no kind is named.

Another kind is a row here, and GPUs that :mod:`disttest.host.devices` finds. A machine has one kind.
"""

ANY_CPU_BACKEND = "gloo"
"""What worlds use on the CPU, and where an accelerator's own backend cannot run."""
DEVICES = (CPU, *(each.device for each in ACCELERATORS))
GPU = ACCELERATORS[0].device


def backend_named(name: str) -> Backend:
    """The row of a backend; one without a row is like any other."""
    return next((row for row in BACKENDS if row.name == name), Backend(name=name))


def accelerator_of(device: str) -> Accelerator:
    """The row of a device type; one without a row is like the first."""
    return next((each for each in ACCELERATORS if each.device == device), ACCELERATORS[0])


def default_backend(device: str, *, slices: bool = False) -> str:
    """The best backend for a device type; ``slices``: the devices are MIG slices."""
    for accelerator in ACCELERATORS:
        if accelerator.device == device and (backend_named(accelerator.backend).takes_slices or not slices):
            return accelerator.backend
    return ANY_CPU_BACKEND


def accelerated(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the backends that do not run on the CPU."""
    return tuple(name for name in names if backend_named(name).needs_accelerator)


def is_accelerator(device: str) -> bool:
    """Whether ``--device`` asks for an accelerator."""
    return any(each.device == device for each in ACCELERATORS)


def visible_devices(shown: str) -> dict[str, str]:
    """The variables by which a process sees these devices and no others, of whatever kind the machine's are."""
    return {each.visible: shown for each in ACCELERATORS}


def build_of(backend: str) -> str:
    """Which build of torch has the backend; empty where that is not known."""
    return next((each.build for each in ACCELERATORS if each.backend == backend), "")
