"""The GPUs of a run: which ones it may use, and how it leases them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from disttest.errors import InfrastructureError, NotEnoughDevices
from disttest.host.findings import Grade
from disttest.model import Slot, WorldShape
from disttest.options.environment import environment
from disttest.options.run import RunOptions
from disttest.options.values import AUTO
from disttest.planning.backends import (
    ACCELERATORS,
    ANY_CPU_BACKEND,
    accelerated,
    accelerator_of,
    is_accelerator,
)
from disttest.planning.schedule import Scheduler
from disttest.plugins.gpus.detect import detect_machine, read_probe
from disttest.plugins.gpus.device_findings import driver_too_old, judge_machine, torch_refusal
from disttest.plugins.gpus.hooks import ALLOW_BUSY_GPUS, LEASE_DIR
from disttest.plugins.gpus.leases.lease import Lease, Leaser, Request
from disttest.plugins.gpus.leases.lockfiles import usual_directory
from disttest.plugins.gpus.leases.quarantine import Quarantine, QuarantineNotes
from disttest.plugins.gpus.limits import LEASE_WAIT_S
from disttest.plugins.gpus.machine import GpuMachine, doubtful_order, is_slice, key_of
from disttest.plugins.gpus.torch_facts import (
    TorchFacts,
    built_for,
    has_accelerator,
    look_at_devices,
)
from disttest.runtime.controller.devices import DeviceHealth, Devices, Suspects, asked_accelerator
from disttest.runtime.controller.target_host import TargetHost

_WHO_LIMIT = 100


class GpuDevices(Devices):
    """GPUs that a run computes on, and must lease before use; or the CPU, which needs no lease."""

    machine: GpuMachine

    def __init__(self, options: RunOptions) -> None:
        """Inspect the machine.

        Raises:
            InfrastructureError: there are GPUs, none of them works, and the run may not fall back to the CPU.
            NotEnoughDevices: there are fewer devices than requested.
            UsageError: the options contradict each other.
        """
        self.probe = read_probe()
        self.directory = LEASE_DIR.of(options) or usual_directory()
        self.allows_busy: bool = ALLOW_BUSY_GPUS.of(options)
        self.lease: Lease | None = None
        self._doubt = ""
        super().__init__(options)
        # torch's CPU build on a machine with GPUs is a choice of the user, not an error.
        on_cpu = options.device == "cpu" or options.gpus.none or self._torch_is_for_the_cpu()
        found = () if on_cpu else self._gpu_slots()
        # Before the GPUs are counted: `auto` means all that work.
        self._left_out = self._in_quarantine(found)
        usable = [slot for slot in found if key_of(slot) not in self._left_out]
        if not on_cpu:
            self._check(usable)
        self.device = usable[0].device if usable else "cpu"
        self.count = options.gpus.count or min(options.slots or len(usable), len(usable))
        self.on_slices = any(is_slice(slot) for slot in usable)
        if usable:
            # Until the lease, the run knows how many GPUs it will get, and not which.
            self.slots = ()
        self.torch: TorchFacts | None = None
        """torch's view of the leased GPUs; None if torch was not asked."""

    def look(self) -> GpuMachine:
        """Inspect the machine now, restricted to the GPUs that CUDA shows and that the options name."""
        machine = detect_machine(library=self.probe.library)
        variable = variable_of(machine)
        visible = environment().get(variable)
        # Once the run holds a lease, it has set the variable itself.
        if visible is not None and self.lease is None:
            self._doubt = doubtful_order(machine, visible, environment().get("CUDA_DEVICE_ORDER", ""))
            machine = machine.restricted_to(visible)
        names = self.options.gpus.names
        unknown = [name for name in names if not machine.restricted_to(name).gpus]
        if unknown:
            shown = f" that {variable}={visible} shows" if visible is not None else ""
            raise NotEnoughDevices(
                f"--gpus: this machine has no GPU {unknown[0]}{shown}; see disttest doctor"
            )
        return machine.restricted_to(",".join(names)) if names else machine

    def _gpu_slots(self) -> tuple[Slot, ...]:
        asked = self.options.device
        return self.machine.slots(asked) if is_accelerator(asked) else self.machine.gpu_slots()

    def _torch_is_for_the_cpu(self) -> bool:
        """Whether the user did not ask for GPUs and the installed torch could not use one."""
        asked = asked_accelerator(self.options)
        return not asked and self.probe.compute == "cuda" and not has_accelerator()

    @property
    def size(self) -> int:
        """Number of slots that the run has or will lease, without CPU slots in addition to GPUs."""
        return len(self.slots) or self.count

    @property
    def gloo_on_cpu(self) -> bool:
        """Whether gloo is used on the CPU because the GPUs belong to another backend: ``cpu:gloo,cuda:nccl``."""
        both = ANY_CPU_BACKEND in self.options.backend and bool(accelerated(self.options.backend))
        return both and is_accelerator(self.device) and self.options.device == AUTO and not self.on_slices

    def target_host(self) -> TargetHost:
        """Return the properties of the devices that collection needs."""
        gpus = self.size if is_accelerator(self.device) else 0
        return TargetHost(
            gpus=gpus,
            device=self.device,
            ranks_per_gpu=self.options.ranks_per_gpu,
            slices=self.on_slices,
            gloo_on_cpu=self.gloo_on_cpu,
        )

    def reserve_cpu_slots(self, *, beside_gpus: bool) -> None:
        """Add CPU slots, because some worlds of this run compute there.

        Args:
            beside_gpus: whether other worlds compute on GPUs, whose ranks need cores as well.
        """
        if self.device == "cpu":
            return
        cores = cpu_share(self.machine.cpus, gpus=self.size) if beside_gpus else self.machine.cpus
        slots = self.machine.slots("cpu", min(cores, self.options.slots or cores))
        if self.lease is None and not beside_gpus:
            # No GPU was leased, and none will be.
            self.slots = slots
        else:
            self.cpu_slots = slots

    def threads(self, shape: WorldShape) -> int:
        """Return the number of compute threads of a rank: a GPU slot has its share of the cores without a CPU slot."""
        if shape.device == "cpu":
            return super().threads(shape)
        return max(1, (self.machine.cpus - len(self.cpu_slots)) // len(self.slots))

    def findings(self) -> list[str]:
        """List findings about the machine for the reader of the reports; empty if all is well."""
        ours = {slot.index for slot in self.slots if slot.device != "cpu"}
        if not ours:
            return self.notes()
        gpus = tuple(gpu for gpu in self.machine.gpus if gpu.index in ours)
        machine = msgspec.structs.replace(self.machine, gpus=gpus)
        found = judge_machine(machine, self.torch) if self.torch else ()
        told = [f"{one.device}: {one.message}" for one in found if one.grade is not Grade.OK]
        return [*self.notes(), *told]

    def notes(self) -> list[str]:
        """List the faults of GPUs that the run does without, and a doubt about which GPUs the user meant."""
        faults = [f"{gpu.label} is left out: {gpu.fault}" for gpu in self.machine.gpus if gpu.fault]
        quarantined = [
            f"GPU {uuid} is left out: in quarantine: {note.reason}" for uuid, note in self._left_out.items()
        ]
        return [*faults, *quarantined, *([self._doubt] if self._doubt else [])]

    def acquire(self, who: str, *, say: Callable[[str], None], timeout_s: float = math.inf) -> None:
        """Lease the GPUs, and hide all others from this process and its descendants. Waits until they are free.

        A driver that cannot serve the installed torch is refused first.

        Args:
            who: name of this run for other runs.
            say: receives one line about what the run waits for, whenever that changes.
            timeout_s: how long to wait.

        Raises:
            InfrastructureError: the driver is too old, or another process blocks the lease directory.
            NotEnoughDevices: the GPUs did not become free in time, or too few of them work.
            UsageError: the lease directory cannot be used.
        """
        if self.device == "cpu" or self.lease is not None:
            return
        # Before the wait in the queue, which may take an hour.
        if self.probe.compute == "cuda" and (
            refusal := driver_too_old(self.machine, built_for().get("cuda", ""))
        ):
            raise InfrastructureError(refusal)
        leaser = Leaser(
            self.directory, self._idle_machine, on_wait=lambda why: say(f"waiting for GPUs: {why}")
        )
        request = Request(
            count=self.count,
            who=who[:_WHO_LIMIT],
            allow_busy=self.allows_busy,
            timeout_s=min(timeout_s, LEASE_WAIT_S),
        )
        self.lease = leaser.take(request)
        self.slots = self.lease.slots
        # By UUID: indices mean other GPUs under another CUDA_DEVICE_ORDER.
        os.environ[variable_of(self.machine)] = visible_to(self.slots)  # noqa: TID251 - its own

    def ask_torch(self) -> None:
        """Ask torch about the leased GPUs, in another process. torch is imported here by now.

        Raises:
            InfrastructureError: torch cannot use them.
        """
        if self.lease is None:
            return
        # CUDA must not be initialized here: a fork of a process that has done so cannot use it.
        sight = look_at_devices()
        self.torch = sight.torch
        if sight.trouble:
            self.fork_trouble = f"a fork of this process cannot use CUDA ({sight.trouble})"
        # CUDA shows a process only one MIG slice: https://github.com/pytorch/pytorch/issues/102715
        needed = 1 if self.on_slices else len(self.slots)
        refusal = torch_refusal(self.machine, self.torch, needed=needed)
        if self.probe.compute == "cuda" and refusal:
            raise InfrastructureError(refusal)

    def release(self) -> None:
        """Release the lease."""
        if self.lease is not None:
            self.lease.release()

    def health(
        self, scheduler: Scheduler, suspects: Suspects, note: Callable[[str, str], None], folder: Path
    ) -> DeviceHealth:
        """Return the health of the GPUs. No process is started before a GPU has been used."""
        if self.device == "cpu":
            return super().health(scheduler, suspects, note, folder)
        # Imported late: it imports the preflight, and most runs have no GPU.
        from disttest.plugins.gpus.gpu_health import GpuHealth

        return GpuHealth(self, scheduler, suspects, note, folder)

    def _idle_machine(self) -> GpuMachine:
        """Return the machine without this process's own use: a test module may have touched a GPU at import."""
        machine = self.machine = self.look()
        gpus = tuple(
            msgspec.structs.replace(gpu, processes=tuple(p for p in gpu.processes if p.pid != os.getpid()))
            for gpu in machine.gpus
        )
        return msgspec.structs.replace(machine, gpus=gpus)

    def _in_quarantine(self, slots: tuple[Slot, ...]) -> dict[str, Quarantine]:
        """Map the keys of slots that waiting would not free to their quarantine notes."""
        if not slots or not self.directory.is_dir():
            return {}
        notes = QuarantineNotes(self.directory).active()
        keys = map(key_of, slots)
        return {key: notes[key] for key in keys if key in notes and not notes[key].pid}

    def _check(self, usable: list[Slot]) -> None:
        gpus, asked = self.options.gpus, asked_accelerator(self.options)
        error = self.machine.nvml_error.rstrip(".")
        wrong = [*self.notes(), *([error] if error else [])]
        if not usable and wrong:
            raise InfrastructureError(
                f"this machine has GPUs and none can be used: {'; '.join(wrong)}. "
                "See disttest doctor; --device cpu runs on the CPU."
            )
        if not usable and asked:
            raise NotEnoughDevices(
                f"{asked} needs a GPU, and this machine has none that works: run disttest doctor to see why, "
                "or drop the option to run on the CPU"
            )
        wanted = max(gpus.count, len(gpus.names))
        if wanted > len(usable):
            raise NotEnoughDevices(
                f"{wanted} GPUs were requested, and {len(usable)} can be used"
                + (f": {'; '.join(wrong)}" if wrong else "")
                + ". Ask for fewer, run on CPU with --device cpu, or see disttest doctor."
            )


def cpu_share(cores: int, *, gpus: int) -> int:
    """Return the number of cores for worlds on the CPU: at most half, and none that a GPU's rank needs.

    GPU time is the scarce resource: its ranks need cores to launch kernels, load data and poll the network. With too
    few cores for that, worlds on the CPU share one.
    """
    return max(1, min(cores // 2, cores - gpus))


def variable_of(machine: GpuMachine) -> str:
    """Return the variable that restricts the GPUs of this machine for a process."""
    return next((accelerator_of(gpu.device) for gpu in machine.gpus), ACCELERATORS[0]).visible


def visible_to(slots: tuple[Slot, ...]) -> str:
    """Return the value of that variable which shows these slots."""
    return ",".join(slot.visible_name for slot in slots if slot.device != "cpu")
