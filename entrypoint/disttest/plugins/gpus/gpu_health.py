"""Health of a run's GPUs: when a slot can be handed on, and whether it can still be trusted.

A GPU is handed on when the driver has released everything that the last world had on it. If failures suggest a broken
device, the preflight is repeated there. A device that fails it, or that the driver declares broken, is taken out of
use. Nothing here waits: the controller's loop calls :meth:`GpuHealth.advance`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disttest.clock import monotonic
from disttest.errors import InfrastructureError
from disttest.host.fork_hazard import holds_gpu
from disttest.host.proc import sees_host_pids
from disttest.limits import IDLE_S
from disttest.model import Batch, Slot, TestResult
from disttest.planning.schedule import Scheduler
from disttest.plugins.gpus.breaker import Breaker, BreakerState, Cleared, GiveUp, Prove, QuarantineDecision
from disttest.plugins.gpus.limits import DEVICE_POLL_S, GPU_PROOF_WAIT_S, GPU_RELEASE_S, GPU_SLOW_RELEASE_S
from disttest.plugins.gpus.machine import Gpu, part_for
from disttest.plugins.gpus.preflight.messages import Target
from disttest.plugins.gpus.preflight.prover import Prover
from disttest.plugins.gpus.preflight.steps import WORKER, targets_of
from disttest.plugins.gpus.run_gpus import GpuDevices
from disttest.plugins.gpus.shared_gpus import SharedGpus
from disttest.plugins.gpus.usage import GpuWatch, gpu_leftover
from disttest.runtime.controller.devices import DeviceHealth, Suspects, Vacated


@dataclass(kw_only=True)
class _WaitingSlot:
    """A vacated world whose GPUs the driver has not released yet."""

    world: Vacated
    since_s: float
    asked: bool = False
    """Whether the driver was queried after the world had left."""
    held: dict[str, str] = field(default_factory=dict)
    """Slot name -> description of the process that held it at the last look."""


class GpuHealth(DeviceHealth):
    """Health of the GPUs of one run."""

    def __init__(
        self,
        devices: GpuDevices,
        scheduler: Scheduler,
        suspects: Suspects,
        note: Callable[[str, str], None],
        folder: Path,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Prepare; no process is started before a GPU has been used.

        Args:
            devices: devices that the run holds.
            scheduler: receives which slots are free, on hold and lost.
            suspects: receives the decisions about suspicious failures.
            note: takes a message and the node id of its test.
            folder: folder for the pipes and logs of MPS daemons.
            clock: a monotonic clock.
        """
        super().__init__(scheduler, note)
        self._devices = devices
        self._suspects = suspects
        self._shared = SharedGpus(folder, lambda message: note(message, ""))
        self._clock = clock
        self._breaker = Breaker(devices.slots)
        self._gpus = {gpu.index: gpu for gpu in devices.machine.gpus}
        self._slots = {slot.name: slot for slot in devices.slots}
        watched = {slot.index for slot in devices.slots if slot.device != "cpu"}
        self._watch = GpuWatch((self._gpus[index] for index in watched), library=devices.probe.library)
        self._asks_driver = bool(watched) and bool(devices.machine.nvml)
        self._waiting: list[_WaitingSlot] = []
        self._asked_s = 0.0
        self._prove: Prove | None = None
        self._wanted_s = 0.0
        self._prover: Prover | None = None
        # Slot name -> the driver's fault report, for slots without a decision yet.
        self._faults: dict[str, str] = {}

    def begin(self) -> None:
        """Load the driver while the first worlds run."""
        if self._asks_driver:
            self._ask()

    # --- what the controller asks

    @property
    def narrowest(self) -> int:
        """Ranks of the smallest world; with fewer slots the run is over."""
        return self._breaker.narrowest

    @narrowest.setter
    def narrowest(self, ranks: int) -> None:
        self._breaker.narrowest = ranks

    def shortage(self, needed: int) -> str:
        """Explain why fewer slots than needed are left."""
        left = len(self._slots) - len(self.broken)
        return f"{'; '.join(self.broken.values())} ({left} of {needed} needed devices are left)"

    @property
    def busy(self) -> bool:
        """Whether a decision is pending, even if no world runs."""
        return bool(self._waiting or self._prove)

    @property
    def pids(self) -> tuple[int, ...]:
        """Helper processes of disttest, which are not leftovers of tests."""
        return (*self._watch.pids, *((self._prover.pid,) if self._prover else ()))

    @property
    def wait_s(self) -> float:
        """Seconds that the controller may wait before the next call."""
        return DEVICE_POLL_S if self._waiting or (self._prove and not self._prover) else IDLE_S

    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that become readable when there is something to do."""
        return (*self._watch.descriptors(), *(self._prover.descriptors() if self._prover else ()))

    def suspects(self, result: TestResult, slots: Sequence[Slot]) -> bool:
        """Observe a result; return whether its failure may be the device's fault and stays undecided."""
        prove = self._breaker.observe(result, slots)
        if prove is not None:
            self._note(prove.reason, "")
            self._prove, self._wanted_s = prove, self._clock()
            # The proof needs idle GPUs, for which it would wait as long as worlds start there.
            self._scheduler.hold(prove.slots)
        return self.is_open(result.nodeid)

    def is_open(self, nodeid: str) -> bool:
        """Whether it is undecided if a test's failure was the device's fault."""
        return self._breaker.suspects(nodeid)

    def variables(self, batch: Batch, slots: tuple[Slot, ...]) -> Mapping[str, str]:
        """Return the environment of ranks that share a GPU."""
        return self._shared.variables(batch, slots)

    def judged(self, batch: Batch, slots: tuple[Slot, ...], *, good: bool) -> None:
        """Handle the result of a test."""
        self._shared.judged(batch, slots, good=good)

    def world_ended(self, batch: Batch, slots: tuple[Slot, ...], *, well: bool) -> None:
        """Handle the end of a world."""
        self._shared.world_ended(batch, slots, well=well)

    def vacate(self, world: Vacated) -> None:
        """Hand the slots of a world on as soon as its GPUs are released."""
        # The memory of a process that has ended may be in use for a while: the driver decides when the GPU is free.
        on_gpus = self._asks_driver and any(slot.device != "cpu" for slot in world.slots)
        if on_gpus and not world.survivors:
            self._waiting.append(_WaitingSlot(world=world, since_s=self._clock()))
            self._ask()
        else:
            super().vacate(world)

    def advance(self, in_use: Collection[str]) -> None:
        """Advance all pending decisions without waiting.

        Args:
            in_use: names of the slots on which worlds run.
        """
        gpus = self._watch.advance()
        if gpus is not None:
            self._apply_driver_report({gpu.index: gpu for gpu in gpus})
        elif self._waiting and self._clock() - self._asked_s >= DEVICE_POLL_S:
            self._ask()
        if self._prove is not None and self._prover is None:
            self._try_to_prove(in_use)
        if self._prover is not None and (found := self._prover.advance()) is not None:
            # Each proof has a new prover: the workers of this one are on devices that may have failed.
            self._prover.kill()
            self._prover = None
            self._conclude(found.broken)

    def close(self) -> None:
        """End the helper processes."""
        try:
            self._shared.finish()
        finally:
            # In `finally`: an error at the end of the daemon must not keep the helper processes alive.
            self._watch.close()
            if self._prover is not None:
                self._prover.kill()

    # --- handing on

    def _ask(self) -> None:
        if self._watch.ask():
            self._asked_s = self._clock()
            for entry in self._waiting:
                entry.asked = True

    def _abandon(self, world: Vacated) -> None:
        for slot in world.slots:
            if self._devices.lease is not None and slot.device != "cpu":
                # A rank that cannot be killed has inherited the lock, so no run gets the GPU while it
                # lives.
                self._devices.lease.leave_to_heirs(slot)
        super()._abandon(world)

    def _apply_driver_report(self, gpus: Mapping[int, Gpu]) -> None:
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            # The question is older than the end of this world, so its answer says nothing about it.
            if not entry.asked:
                self._waiting.append(entry)
                continue
            faults, stuck = self._look_at(entry, gpus)
            if stuck is None:
                self._waiting.append(entry)
                continue
            for slot, holder in stuck.items():
                self._give_up_slot(entry, slot, holder)
            # Hold them first; otherwise ended() would free them, and the scheduler would use them again.
            self._scheduler.hold(faults)
            self._scheduler.ended(entry.world.batch_id, quarantined=stuck)
            if faults:
                self._condemn({slot.name: reason for slot, reason in faults.items()})
        if not all(entry.asked for entry in self._waiting):
            self._ask()

    def _look_at(
        self, entry: _WaitingSlot, gpus: Mapping[int, Gpu]
    ) -> tuple[dict[Slot, str], dict[Slot, Gpu] | None]:
        """Return slots that the driver declares broken, and those that are still held; None to keep waiting."""
        slots = [slot for slot in entry.world.slots if slot.name not in self.broken and slot.index in gpus]
        now = {slot: part_for(slot, gpus[slot.index]) for slot in slots}
        faults = {slot: _fault_of(gpu) for slot, gpu in now.items() if gpu.fault}
        # Where others use the GPU too, only processes of this world count.
        ours = entry.world.pids if self._devices.allows_busy or _holds_unseen() else None
        held = {
            slot: left
            for slot, gpu in now.items()
            if slot not in faults and (left := gpu_leftover(self._before(slot), gpu, ours=ours))
        }
        waited_s = self._clock() - entry.since_s
        # Normal for a short time after the end of a process.
        if held and waited_s < GPU_RELEASE_S:
            entry.held = {slot.name: left for slot, left in held.items()}
            return {}, None
        if not held and entry.held and waited_s >= GPU_SLOW_RELEASE_S:
            what = "; ".join(entry.held.values())
            self._note(f"{what}, {waited_s:.1f} s after its world had ended", entry.world.last_test)
        return faults, {slot: now[slot] for slot in held}

    def _before(self, slot: Slot) -> Gpu:
        """Return the state of a slot before the run."""
        return part_for(slot, self._gpus[slot.index])

    def _give_up_slot(self, entry: _WaitingSlot, slot: Slot, gpu: Gpu) -> None:
        reason = entry.held.get(slot.name) or f"{gpu.label} was not released"
        self._note(
            f"{reason}, {GPU_RELEASE_S:g} s after its world had ended: it is in quarantine",
            entry.world.last_test,
        )
        # The quarantine ends with this process, so it must be the one that came with the world.
        known = {process.pid for process in self._before(slot).processes}
        holder = next((process.pid for process in gpu.processes if process.pid not in known), 0)
        self._lose(slot, reason, pid=holder)

    def _lose(self, slot: Slot, reason: str, *, pid: int = 0) -> None:
        self.broken[slot.name] = reason
        if self._devices.lease is not None and slot in self._devices.lease.slots:
            try:
                # Other runs on the machine must not use it either.
                self._devices.lease.quarantine(slot, reason, pid=pid)
            except InfrastructureError as error:
                self._note(f"{error}: this run keeps it locked instead, as long as it lasts", "")

    # --- proving

    def _condemn(self, faults: dict[str, str]) -> None:
        """Take slots out of use that the driver declares broken; its own report needs no proof."""
        self._faults |= faults
        if self._breaker.state is BreakerState.CLOSED:
            self._apply(self._breaker.lost(self._faults))

    def _try_to_prove(self, in_use: Collection[str]) -> None:
        assert self._prove is not None
        used = {*in_use, *(slot.name for entry in self._waiting for slot in entry.world.slots)}
        idle = tuple(slot for slot in self._prove.slots if slot.name not in used)
        # A proof needs idle GPUs; after this time it uses those that are idle.
        late = self._clock() - self._wanted_s >= GPU_PROOF_WAIT_S
        if not idle or (len(idle) < len(self._prove.slots) and not late):
            return
        targets = self._targets(idle)
        if targets:
            worker = self._devices.probe.worker or WORKER
            self._prover = Prover(worker=worker)
            self._prover.begin(targets)
        else:
            self._conclude({})

    def _targets(self, slots: Sequence[Slot]) -> tuple[Target, ...]:
        # A slot that the driver calls broken needs no proof, and might hang it.
        names = {slot.name for slot in slots if slot.name not in self._faults}
        every = targets_of(self._devices.machine, compute=self._devices.probe.compute)
        return tuple(target for target in every if target.name in names)

    def _conclude(self, found: Mapping[str, str]) -> None:
        assert self._prove is not None
        # The driver may have declared a GPU broken while the proof ran on the others.
        self._apply(self._breaker.proved({**found, **self._faults}))

    def _apply(self, decision: QuarantineDecision | GiveUp | Cleared) -> None:
        held = self._prove.slots if self._prove is not None else ()
        self._prove = None
        self._faults.clear()
        if isinstance(decision, Cleared):
            self._note("the preflight found nothing: these failures are the tests' own", "")
            self._scheduler.release(held)
            self._suspects.on_cleared()
            return
        lost = [self._slots[name] for name in decision.broken]
        for slot in lost:
            self._note(f"{decision.broken[slot.name]}: {slot.name} is in quarantine", "")
            self._lose(slot, decision.broken[slot.name])
        # Before the release, after which the scheduler gives slots to the next world.
        self._scheduler.quarantine(lost)
        self._scheduler.release(held)
        if isinstance(decision, GiveUp):
            self._suspects.on_gave_up(decision.again, decision.reason)
        else:
            self._suspects.on_device_blamed(decision.again, "; ".join(decision.broken.values()))


def _holds_unseen() -> bool:
    """Whether this process holds a GPU that it cannot recognize, because the driver reports other process ids."""
    return holds_gpu() and not sees_host_pids()


def _fault_of(gpu: Gpu) -> str:
    return gpu.fault if gpu.label in gpu.fault else f"{gpu.label}: {gpu.fault}"
