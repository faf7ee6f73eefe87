"""The devices of a run as the core knows them: processors, or what a plugin makes of ``disttest_make_devices``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from disttest.errors import UsageError
from disttest.host.cpu import detect_host
from disttest.host.machine import Machine
from disttest.limits import IDLE_S
from disttest.model import Batch, Frozen, Slot, TestResult, WorldShape
from disttest.options.environment import ci_job
from disttest.options.run import RunOptions
from disttest.options.values import AUTO, check_provided
from disttest.planning.backends import accelerated, is_accelerator
from disttest.planning.schedule import Scheduler
from disttest.plugin_manager import plugin_manager
from disttest.runtime.controller.target_host import TargetHost


def make_devices(options: RunOptions) -> Devices:
    """Inspect this machine, and return the devices that a run with these options computes on.

    Raises:
        DisttestError: the devices that the options require are missing or broken.
        UsageError: the options contradict each other.
    """
    made: Devices | None = plugin_manager().call("disttest_make_devices", options=options)
    if made is not None:
        return made
    if asked := asked_accelerator(options):
        raise UsageError(
            f"{asked} needs a plugin that provides devices, and this run has none: drop the option to run on the CPU, or "
            "the `-p no:` that leaves the plugin out"
        )
    return Devices(options)


def this_machine() -> Machine:
    """Detect this machine, with the devices that plugins know."""
    found: Machine | None = plugin_manager().call("disttest_detect_machine")
    return detect_host() if found is None else found


def asked_accelerator(options: RunOptions) -> str:
    """Return the option that asks for another device than the CPU; empty if none does."""
    if is_accelerator(options.device):
        return f"--device {options.device}"
    if backends := accelerated(options.backend):
        return f"--backend {backends[0]}"
    return "--gpus" if options.gpus.required else ""


def name_run(arguments: list[str]) -> str:
    """Name this run for other runs on the host: its command, and its CI job if there is one."""
    job = ci_job()
    return f"disttest {' '.join(arguments)}" + (f" ({job.name})" if job and job.name else "")


class Devices:
    """Devices that a run computes on: the processors. Plugins provide others in a subclass."""

    device = "cpu"
    """torch's type of the devices."""
    fork_trouble = ""
    """The reason why forks of this process cannot use the devices, although a fresh process can."""

    def __init__(self, options: RunOptions) -> None:
        """Inspect the machine.

        Raises:
            UsageError: the options contradict each other.
        """
        _check_options(options)
        self.options = options
        self.machine = self.look()
        self.slots = self.machine.slots("cpu", options.slots or None)
        self.cpu_slots: tuple[Slot, ...] = ()
        """CPU slots in addition to other devices, for worlds that compute on the CPU; empty if the run has none."""

    def look(self) -> Machine:
        """Inspect the machine now."""
        return detect_host()

    @property
    def size(self) -> int:
        """Number of slots that the run has or will lease, without CPU slots in addition to other devices."""
        return len(self.slots)

    def target_host(self) -> TargetHost:
        """Return the properties of the devices that collection needs."""
        return TargetHost(gpus=0, device=self.device, ranks_per_gpu=self.options.ranks_per_gpu)

    def reserve_cpu_slots(self, *, beside_gpus: bool) -> None:
        """Add CPU slots to other devices, because some worlds of this run compute there.

        Args:
            beside_gpus: whether other worlds compute on GPUs, whose ranks need cores as well.
        """

    def threads(self, shape: WorldShape) -> int:
        """Return the number of compute threads of a rank: a CPU slot is a core."""
        # There may be more slots than cores, for worlds that mostly wait.
        cores = min(len(self.cpu_slots or self.slots), self.machine.cpus)
        return max(1, cores // shape.size)

    def findings(self) -> list[str]:
        """List findings about the machine for the reader of the reports; empty if all is well."""
        return []

    def acquire(self, who: str, *, say: Callable[[str], None], timeout_s: float = math.inf) -> None:
        """Reserve the devices for this run, and hide all others from this process and its descendants.

        Waits until they are free.

        Args:
            who: name of this run for other runs.
            say: receives one line about what the run waits for, whenever that changes.
            timeout_s: how long to wait.

        Raises:
            DisttestError: the devices are broken, or did not become free in time.
        """

    def ask_torch(self) -> None:
        """Check that torch, which is imported here by now, can use the acquired devices.

        Raises:
            InfrastructureError: torch cannot use them.
        """

    def release(self) -> None:
        """Release the devices for other runs."""

    def health(
        self, scheduler: Scheduler, suspects: Suspects, note: Callable[[str, str], None], folder: Path
    ) -> DeviceHealth:
        """Return the health of these devices.

        Args:
            scheduler: receives which slots are free, on hold and lost.
            suspects: receives the decisions about suspicious failures.
            note: takes a message and the node id of its test.
            folder: folder for files of helper processes.
        """
        del suspects, folder
        return DeviceHealth(scheduler, note)


class Suspects(Protocol):
    """Receives decisions about tests whose failures may be the device's fault."""

    def on_cleared(self) -> None:
        """The devices work: these failures belong to their tests."""

    def on_device_blamed(self, nodeids: Sequence[str], reason: str) -> None:
        """The device that caused these failures is out of use: the tests may run again on others."""

    def on_gave_up(self, nodeids: Sequence[str], reason: str) -> None:
        """The same, but too few devices are left to continue."""


class Vacated(Frozen):
    """A world that has left its slots."""

    batch_id: str
    slots: tuple[Slot, ...]
    last_test: str = ""
    pids: tuple[int, ...] = ()
    """Process ids of its ranks, as far as they are known."""
    survivors: tuple[int, ...] = ()
    """Processes that could not be killed."""


class DeviceHealth:
    """Health of a run's devices: when a slot can be handed on, and whether it can still be trusted.

    Processors are handed on immediately, and no failure of a test is their fault. Nothing here waits: the controller's
    loop calls :meth:`advance`.
    """

    narrowest = 1
    """Ranks of the smallest world; with fewer slots the run is over."""

    def __init__(self, scheduler: Scheduler, note: Callable[[str, str], None]) -> None:
        self._scheduler = scheduler
        self._note = note
        self.broken: dict[str, str] = {}
        """Slot name -> reason why it is out of use."""

    @property
    def busy(self) -> bool:
        """Whether a decision is pending, even if no world runs."""
        return False

    @property
    def pids(self) -> tuple[int, ...]:
        """Helper processes of disttest, which are not leftovers of tests."""
        return ()

    @property
    def wait_s(self) -> float:
        """Seconds that the controller may wait before the next call."""
        return IDLE_S

    def begin(self) -> None:
        """Start helper processes while the first worlds run, so that no world waits for them."""

    def shortage(self, needed: int) -> str:
        """Explain why fewer slots than needed are left."""
        del needed
        return "; ".join(self.broken.values())

    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that become readable when there is something to do."""
        return ()

    def variables(self, batch: Batch, slots: tuple[Slot, ...]) -> Mapping[str, str]:
        """Return the environment that the ranks of a world on these slots need."""
        del batch, slots
        return {}

    def judged(self, batch: Batch, slots: tuple[Slot, ...], *, good: bool) -> None:
        """Handle the result of a test."""

    def suspects(self, result: TestResult, slots: Sequence[Slot]) -> bool:
        """Observe a result; return whether its failure may be the device's fault and stays undecided."""
        del slots
        return self.is_open(result.nodeid)

    def is_open(self, nodeid: str) -> bool:
        """Whether it is undecided if a test's failure was the device's fault."""
        del nodeid
        return False

    def world_ended(self, batch: Batch, slots: tuple[Slot, ...], *, well: bool) -> None:
        """Handle the end of a world."""

    def vacate(self, world: Vacated) -> None:
        """Hand the slots of a world on as soon as its devices are released."""
        if world.survivors:
            self._abandon(world)
        else:
            self._scheduler.ended(world.batch_id)

    def _abandon(self, world: Vacated) -> None:
        pids = ", ".join(map(str, world.survivors))
        names = ", ".join(slot.name for slot in world.slots)
        self._note(f"{names}: no longer used, because processes could not be killed: {pids}", world.last_test)
        self._scheduler.ended(world.batch_id, quarantined=world.slots)

    def advance(self, in_use: Collection[str]) -> None:
        """Advance all pending decisions without waiting.

        Args:
            in_use: names of the slots on which worlds run.
        """

    def close(self) -> None:
        """End the helper processes."""


def _check_options(options: RunOptions) -> None:
    """Refuse contradictory options.

    Raises:
        UsageError: they contradict each other.
    """
    if check_provided(options.device):
        raise UsageError(
            f"--device {options.device} needs the command: run your tests with `disttest run --device {options.device} …`"
        )
    if options.gpus.none and options.device not in (AUTO, "cpu"):
        raise UsageError(f"--gpus none and --device {options.device} contradict each other")
