"""Leases of GPUs, so that several runners on one host do not use the same ones.

A slot is held by a lock on a file named by its UUID, in a directory that the runners share. Waiting runs form a
queue. The first one takes its slots as soon as enough of them are free, healthy and not in use by foreign
processes. GPUs are leased for the whole run: runs are short, worlds follow each other in milliseconds, and a run
that queued for each world could starve.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from disttest.errors import InfrastructureError, NotEnoughDevices
from disttest.model import Frozen, Slot
from disttest.plugins.gpus.leases.lockfiles import (
    Holder,
    Lock,
    LockDirectory,
    boot_clock,
    join_queue,
    leave_queue,
    tickets_ahead,
)
from disttest.plugins.gpus.leases.quarantine import Quarantine, QuarantineNotes
from disttest.plugins.gpus.limits import (
    LEASE_FRESH_S,
    LEASE_LONGEST_POLL_S,
    LEASE_LOOK_S,
    LEASE_POLL_S,
    LEASE_WAIT_S,
)
from disttest.plugins.gpus.machine import Gpu, GpuMachine, key_of, part_for

_UNSEEN_SHARE = 0.05
"""Share of memory in use above which an invisible process, for example of another container, must hold it."""


class Request(Frozen):
    """A request of a run."""

    count: int
    who: str = ""
    """Description of the run and its command, for other runs."""
    allow_busy: bool = False
    """Whether to take GPUs that foreign processes use."""
    timeout_s: float = LEASE_WAIT_S


class SlotState(Frozen):
    """The state of one slot as a waiting run sees it."""

    slot: Slot
    label: str
    obstacle: str = ""
    """Reason why it is unavailable; empty for a free one."""
    permanent: bool = False
    """Whether waiting is useless: the GPU is broken or in quarantine."""
    held: bool = False
    """Whether another run holds it."""


class Lease:
    """Slots that this process holds until it releases them or ends."""

    def __init__(self, held: Sequence[tuple[Slot, Lock]], notes: QuarantineNotes) -> None:
        self._held = dict(held)
        self._notes = notes

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots held, in order."""
        return tuple(self._held)

    def quarantine(self, slot: Slot, reason: str, *, pid: int = 0) -> None:
        """Give up a slot and prevent all runs from using it.

        Args:
            slot: a slot of this lease.
            reason: reason, shown by other runs.
            pid: process that does not release the GPU; the quarantine ends with that process.

        Raises:
            InfrastructureError: the quarantine cannot be recorded; the slot stays in this lease.
        """
        # The note comes first. Between the release and the note, another run could take the GPU.
        self._notes.add(key_of(slot), reason, pid=pid)
        self.release_slot(slot)

    def release_slot(self, slot: Slot) -> None:
        """Release one slot."""
        self._held.pop(slot).release()

    def leave_to_heirs(self, slot: Slot) -> None:
        """Release a slot in this process only: it becomes free when the last process that inherited its lock ends."""
        self._held.pop(slot).close()

    def release(self) -> None:
        """Release all slots; repeated calls are harmless."""
        for slot in self.slots:
            self.release_slot(slot)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Leaser:
    """Takes leases in one directory."""

    def __init__(
        self,
        directory: Path,
        inspect: Callable[[], GpuMachine],
        *,
        on_wait: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to take leases.

        Args:
            directory: the lease directory; created if missing.
            inspect: detects the machine, as :func:`disttest.plugins.gpus.detect.detect_machine` does.
            on_wait: called with the reason for waiting, whenever it changes.
            clock: a monotonic clock.
            sleep: waits some seconds.

        Raises:
            UsageError: the directory cannot be used.
        """
        self._directory = LockDirectory(directory)
        self._notes = QuarantineNotes(directory)
        self._inspect = inspect
        self._on_wait = on_wait
        self._clock = clock
        self._sleep = sleep
        self._seen: GpuMachine | None = None
        self._seen_s = 0.0
        self._ahead = 0

    def take(self, request: Request) -> Lease:
        """Take ``request.count`` slots; wait in the queue for them.

        Raises:
            NotEnoughDevices: the machine has fewer healthy ones, or they did not become free in time.
        """
        deadline_s = self._clock() + request.timeout_s
        ticket = self._join(request)
        reported = ""
        try:
            while True:
                lease, reason = self._attempt(request, ticket)
                if lease is not None:
                    return lease
                # The loop looks up to a hundred times a second, and the terminal gets a line for each
                # change.
                if reason != reported:
                    self._on_wait(reason)
                    reported = reason
                if self._clock() >= deadline_s:
                    raise NotEnoughDevices(f"no lease within {request.timeout_s:g} s: {reason}")
                self._sleep(min(LEASE_LONGEST_POLL_S, LEASE_POLL_S * (1 + self._ahead)))
        finally:
            leave_queue(self._directory, ticket)

    def states(self, *, allow_busy: bool = False) -> tuple[SlotState, ...]:
        """Return every slot of the machine with the reason why it cannot be taken now."""
        machine = self._look()
        notes = self._active_notes(machine)
        states = []
        for slot, gpu in _slots_with_gpus(machine):
            state = _state(slot, gpu, notes.get(key_of(slot)), allow_busy=allow_busy)
            states.append(state if state.obstacle else self._lock_state(state))
        return tuple(states)

    def _active_notes(self, machine: GpuMachine) -> dict[str, Quarantine]:
        slices = [part for gpu in machine.gpus for part in gpu.slices]
        # A note has the pid that the driver reported. It may be one of another pid namespace, so /proc
        # does not show whether it lives.
        holding = {(gpu.uuid, process.pid) for gpu in machine.gpus for process in gpu.processes}
        holding |= {(part.uuid, process.pid) for part in slices for process in part.processes}
        return self._notes.active(is_alive=lambda note: (note.uuid, note.pid) in holding)

    def _lock_state(self, state: SlotState) -> SlotState:
        lock = self._directory.try_lock(_lock_name(state.slot))
        if lock is not None:
            lock.release()
            return state
        return SlotState(slot=state.slot, label=state.label, obstacle=self._held_by(state.slot), held=True)

    def _held_by(self, slot: Slot) -> str:
        holder = self._directory.read(_lock_name(slot))
        return f"held by {_render_holder(holder)}"

    def _look(self, *, max_age_s: float = 0.0) -> GpuMachine:
        if self._seen is None or self._clock() - self._seen_s > max_age_s:
            self._seen, self._seen_s = self._inspect(), self._clock()
        return self._seen

    def _join(self, request: Request) -> Lock:
        who = f"{request.who} (waits for {request.count})".strip()
        with self._gate(30.0) as opened:
            if not opened:
                stopped = _render_holder(self._directory.read("gate"))
                raise InfrastructureError(
                    f"the gate of the lease directory {self._directory.path} has been held for 30 s "
                    f"by {stopped}: is that process stopped? Let it run, or end it."
                )
            return join_queue(self._directory, Holder(pid=os.getpid(), who=who, since_s=boot_clock()))

    def _gate(self, timeout_s: float) -> AbstractContextManager[bool]:
        return self._directory.gate(timeout_s=timeout_s, clock=self._clock, sleep=self._sleep)

    def _attempt(self, request: Request, ticket: Lock) -> tuple[Lease | None, str]:
        """Try once; return a lease, or None with the reason."""
        # Before the gate is taken: the driver may need seconds, and the gate stops all other runs.
        machine = self._look(max_age_s=LEASE_LOOK_S)
        notes = self._active_notes(machine)
        entries = _slots_with_gpus(machine)
        states = [
            _state(slot, gpu, notes.get(key_of(slot)), allow_busy=request.allow_busy) for slot, gpu in entries
        ]
        _check_enough(request, states)
        open_slots = [entry for entry, state in zip(entries, states, strict=True) if not state.obstacle]
        held, reason = self._lock(request, ticket, open_slots)
        if not held:
            obstacles = [f"{state.label}: {state.obstacle}" for state in states if state.obstacle]
            return None, "; ".join([reason, *obstacles])
        lease = Lease(held, self._notes)
        spoiled = self._spoiled(lease, request)
        # Everything is returned: a run that keeps a part while it waits could block another one that does
        # the same.
        if spoiled:
            lease.release()
            return None, spoiled
        return lease, ""

    def _lock(
        self, request: Request, ticket: Lock, entries: Sequence[tuple[Slot, Gpu]]
    ) -> tuple[list[tuple[Slot, Lock]], str]:
        with self._gate(1.0) as opened:
            if not opened:
                return [], "the lease directory is busy"
            ahead = tickets_ahead(self._directory, ticket)
            self._ahead = len(ahead)
            if ahead:
                return [], f"in line behind {_render_holder(self._directory.read(ahead[0]))}"
            return self._lock_at_head(request, entries)

    def _lock_at_head(
        self, request: Request, entries: Sequence[tuple[Slot, Gpu]]
    ) -> tuple[list[tuple[Slot, Lock]], str]:
        # All that are free are locked first, so that the choice among them cannot be overtaken.
        tried = [(entry, self._directory.try_lock(_lock_name(entry[0]))) for entry in entries]
        free = {entry[0]: lock for entry, lock in tried if lock is not None}
        wanted: tuple[Slot, ...] = ()
        if len(free) >= request.count:
            wanted = choose_slots([entry for entry, lock in tried if lock is not None], request.count)
        # The rest goes back immediately. This run is first in line, so nothing else has missed it.
        for slot, lock in free.items():
            if slot not in wanted:
                lock.release()
        held = [(slot, free[slot]) for slot in wanted]
        holder = Holder(pid=os.getpid(), who=request.who, since_s=boot_clock())
        for _, lock in held:
            lock.sign(holder)
        taken = [f"{entry[1].label} {self._held_by(entry[0])}" for entry, lock in tried if lock is None]
        return held, f"{len(free)} of {request.count} GPUs are free; " + "; ".join(taken)

    def _spoiled(self, lease: Lease, request: Request) -> str:
        """Return a reason against the slots just locked; empty if there is none."""
        # Checked again on a fresh answer of the driver: a GPU that was free when the wait began may be in foreign
        # use now.
        machine = self._look(max_age_s=LEASE_FRESH_S)
        now = dict(_slots_with_gpus(machine))
        notes = self._active_notes(machine)
        for slot in lease.slots:
            if slot not in now:
                return f"{slot.name} ({key_of(slot)}) has vanished"
            state = _state(slot, now[slot], notes.get(key_of(slot)), allow_busy=request.allow_busy)
            if state.obstacle:
                return f"{state.label}: {state.obstacle}"
        return ""


def _slots_with_gpus(machine: GpuMachine) -> list[tuple[Slot, Gpu]]:
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    healthy = [(slot, part_for(slot, gpus[slot.index])) for slot in machine.gpu_slots()]
    broken = [
        (Slot(name=f"gpu:{gpu.index}", device=gpu.device, index=gpu.index, uuid=gpu.uuid), gpu)
        for gpu in machine.gpus
        if gpu.fault
    ]
    return sorted([*healthy, *broken], key=lambda entry: (entry[0].index, entry[0].name))


def _state(slot: Slot, gpu: Gpu, note: Quarantine | None, *, allow_busy: bool) -> SlotState:
    broken = gpu.fault or (f"in quarantine: {note.reason}" if note else "")
    busy = "" if allow_busy else foreign_use(gpu)
    # A process may release its GPU while the run waits. A broken GPU stays broken.
    permanent = bool(gpu.fault) or (note is not None and not note.pid)
    return SlotState(slot=slot, label=gpu.label, obstacle=broken or busy, permanent=permanent)


def foreign_use(gpu: Gpu) -> str:
    """Return how foreign processes use a GPU that no run holds; empty for an idle one."""
    # Processes that only draw, such as a desktop on GPU 0, do not count.
    computing = [process for process in gpu.processes if process.computes]
    if computing:
        names = ", ".join(f"{process.name or 'process'} (pid {process.pid})" for process in computing)
        return f"used by {names}"
    if not gpu.processes and gpu.memory_used > _UNSEEN_SHARE * gpu.memory_total > 0:
        return f"{gpu.memory_used >> 20} MiB are used by a process that cannot be seen from here"
    return ""


def _check_enough(request: Request, states: Sequence[SlotState]) -> None:
    usable = [state for state in states if not state.permanent]
    if len(usable) >= request.count:
        return
    reasons = "; ".join(f"{state.label}: {state.obstacle}" for state in states if state.permanent)
    raise NotEnoughDevices(
        f"{request.count} GPUs were requested, and {len(usable)} of {len(states)} can be used"
        + (f": {reasons}" if reasons else "")
        + ". Ask for fewer, run on CPU with --device cpu, or see disttest doctor."
    )


def _lock_name(slot: Slot) -> str:
    return f"{key_of(slot)}.lock"


def _render_holder(holder: Holder) -> str:
    if not holder.pid:
        return "another run"
    # Another user may have written an impossible time.
    minutes = int(min(max(0.0, boot_clock() - holder.since_s), boot_clock())) // 60
    # Whole minutes: the line is shown whenever it changes, which must not be every second.
    age = f" for {minutes} min" if minutes else ""
    return f"{holder.who or 'a run'}, pid {holder.pid}{age}"


_NEAR = {"internal": 5, "single": 4, "multiple": 3, "hostbridge": 2, "node": 1}

_MOST_SETS = 20_000
"""Number of sets up to which all are compared: C(16, 8) = 12,870 still are."""


def choose_slots(free: Sequence[tuple[Slot, Gpu]], count: int) -> tuple[Slot, ...]:
    """Choose the best ``count`` of the free slots: NVLink peers first, then the nearest on PCIe."""
    # Among equals, it prefers the set that separates the fewest NVLinks from the GPUs that stay free, so that a
    # request for one GPU does not break a bridged pair; then the lowest numbers.
    if math.comb(len(free), count) > _MOST_SETS:
        return _grow(free, count)
    best = max(itertools.combinations(free, count), key=lambda chosen: _worth(chosen, free))
    return tuple(slot for slot, _ in best)


def _worth(chosen: Sequence[tuple[Slot, Gpu]], free: Sequence[tuple[Slot, Gpu]]) -> tuple[float, ...]:
    inside = [gpu for _, gpu in chosen]
    outside = [gpu for slot, gpu in free if all(slot != taken for taken, _ in chosen)]
    pairs = list(itertools.combinations(inside, 2))
    links = [_nvlinks(first, second) for first, second in pairs]
    return (
        # A ring is as fast as its slowest link, so the minimum counts before the sum.
        float(min(links, default=0)),
        float(sum(links)),
        float(sum(_nearness(first, second) for first, second in pairs)),
        -float(sum(_nvlinks(first, second) for first in inside for second in outside)),
        *(-float(gpu.index) for gpu in inside),
    )


def _grow(free: Sequence[tuple[Slot, Gpu]], count: int) -> tuple[Slot, ...]:
    """From each start, repeatedly add the slot with the most links to the chosen ones; return the best result."""
    grown = [_grow_from(start, free, count) for start in free]
    best = max(grown, key=lambda chosen: _worth(chosen, free))
    return tuple(slot for slot, _ in sorted(best, key=lambda entry: entry[0].index))


def _grow_from(
    start: tuple[Slot, Gpu], free: Sequence[tuple[Slot, Gpu]], count: int
) -> list[tuple[Slot, Gpu]]:
    chosen = [start]
    while len(chosen) < count:
        rest = [entry for entry in free if entry not in chosen]
        chosen.append(max(rest, key=lambda entry: sum(_nvlinks(entry[1], gpu) for _, gpu in chosen)))
    return chosen


def _nvlinks(first: Gpu, second: Gpu) -> int:
    return next((peer.nvlinks for peer in first.peers if peer.index == second.index), 0)


def _nearness(first: Gpu, second: Gpu) -> int:
    path = next((peer.path for peer in first.peers if peer.index == second.index), "")
    return _NEAR.get(path, 0)
