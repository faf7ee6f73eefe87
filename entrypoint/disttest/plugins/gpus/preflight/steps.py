"""The preflight: real work on each device alone, then on each pair, then on all, with a time limit for each step.

One worker process per device runs its checks and is later one rank of the collectives. One more worker runs the
pairs. A device cannot hang, crash or fool the caller: silence and death are findings, like wrong numbers.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from disttest.host.bounded import BoundedChild, wait_children
from disttest.plugins.gpus.limits import (
    PREFLIGHT_CHECK_S,
    PREFLIGHT_COLLECTIVE_MARGIN_S,
    PREFLIGHT_COLLECTIVE_S,
    PREFLIGHT_GRACE_S,
    PREFLIGHT_START_S,
    PREFLIGHT_TOTAL_S,
)
from disttest.plugins.gpus.machine import GpuMachine, is_slice, part_for
from disttest.plugins.gpus.preflight.messages import (
    PAIR_CHECK,
    AnyWord,
    Began,
    Check,
    CollectiveJob,
    DeviceJob,
    Job,
    Level,
    Measured,
    PairsJob,
    PreflightResult,
    Ready,
    Target,
    find_broken,
)

WORKER = "disttest.plugins.gpus.preflight.worker"

_MAX_LOST_PAIRS = 3
"""Number of hanging pairs after which the rest are not tried: each costs a worker and its time-out."""

_decoder: msgspec.json.Decoder[AnyWord] = msgspec.json.Decoder(AnyWord)


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of the steps, in seconds. Tests pass their own."""

    start: float = PREFLIGHT_START_S
    check: float = PREFLIGHT_CHECK_S
    collective: float = PREFLIGHT_COLLECTIVE_S
    grace: float = PREFLIGHT_GRACE_S
    total: float = PREFLIGHT_TOTAL_S


def targets_of(machine: GpuMachine, *, compute: str = "cuda", cpus: int = 2) -> tuple[Target, ...]:
    """Return the devices of a machine to prove: its usable GPUs and MIG slices, otherwise some ranks on the CPU.

    Args:
        machine: the machine as detected.
        compute: device type of the computation; with ``cpu`` only the names of the GPUs are used.
        cpus: number of CPU ranks to prove if there is no GPU.
    """
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    slots = machine.gpu_slots()
    if not slots:
        return tuple(Target(name=f"cpu:{index}", label=f"CPU rank {index}") for index in range(cpus))
    return tuple(
        Target(
            name=slot.name,
            label=part_for(slot, gpus[slot.index]).label,
            device=compute,
            visible=slot.visible_name,
            is_slice=is_slice(slot),
        )
        for slot in slots
    )


def prove_all(
    targets: Sequence[Target],
    *,
    level: Level,
    worker: str,
    bounds: Bounds,
    fork: bool,
    clock: Callable[[], float] = time.monotonic,
) -> PreflightResult:
    """Prove devices. It takes seconds, and never longer than the limits.

    Args:
        targets: devices to prove, all of one device type.
        level: amount of work.
        worker: module of the worker.
        bounds: time limits.
        fork: whether workers are forks of this process, which has imported that module and can be forked. Otherwise
            each is a new interpreter, and all import torch at the same time.
        clock: a monotonic clock.
    """
    started_s = clock()
    with tempfile.TemporaryDirectory(prefix="disttest-preflight-") as folder:
        preflight = _Preflight(tuple(targets), level, _Starter(worker, bounds, fork), Path(folder))
        try:
            preflight.prove_devices()
            preflight.prove_pairs()
            preflight.prove_collectives()
        finally:
            preflight.close()
    checks = _in_order(preflight.checks, targets)
    return PreflightResult(checks=checks, broken=find_broken(checks), duration_s=clock() - started_s)


def _in_order(checks: Iterable[Check], targets: Sequence[Target]) -> tuple[Check, ...]:
    """Sort the checks by device, then those of several devices; workers report them in any order."""
    places = {target.name: place for place, target in enumerate(targets)}
    last = len(places)
    return tuple(sorted(checks, key=lambda c: places[c.devices[0]] if len(c.devices) == 1 else last))


class _Starter(NamedTuple):
    """How to start workers."""

    module: str
    bounds: Bounds
    fork: bool


class _Worker:
    """One worker process and its current check."""

    def __init__(self, starter: _Starter, targets: Sequence[Target]) -> None:
        self._on_measured: Callable[[Began, Measured], None] = lambda _began, _measured: None
        self.began: Began | None = None
        self.idle = False
        self.failed = False
        visible = ",".join(target.visible for target in targets)
        self.child = BoundedChild(
            starter.module,
            timeout_s=starter.bounds.total,
            stall_s=starter.bounds.start,
            on_line=self._on_line,
            # Set from the start: once CUDA is initialised, which an import may do, it no longer reads the variable.
            variables={"CUDA_VISIBLE_DEVICES": visible} if visible else {},
            fork=starter.fork,
        )

    @property
    def settled(self) -> bool:
        return self.idle or self.child.ended is not None

    def give(self, job: Job, *, stall_s: float, on_measured: Callable[[Began, Measured], None]) -> None:
        self._on_measured = on_measured
        self.idle = False
        self.child.send(job, stall_s=stall_s)

    def _on_line(self, line: bytes) -> None:
        try:
            word = _decoder.decode(line)
        except msgspec.DecodeError:
            return
        match word:
            case Ready():
                self.idle = True
                self.began = None
                self.child.expect()
            case Began():
                self.began = word
            case Measured():
                self.failed = self.failed or not word.passed
                self._on_measured(self.began or Began(check="?"), word)

    def last_words(self) -> tuple[Began, str]:
        """Return the check that a worker was in when it ended, and how it ended."""
        return self.began or Began(check="start"), f"the worker {self.child.ended}"


class _Preflight:
    """State of one preflight, for the duration of :func:`prove_all`."""

    def __init__(self, targets: tuple[Target, ...], level: Level, starter: _Starter, folder: Path) -> None:
        self.targets = targets
        self.level = level
        self.starter = starter
        self.bounds = starter.bounds
        self.folder = folder
        self.checks: list[Check] = []
        self.workers = {target.name: _Worker(starter, [target]) for target in targets}
        self.pairs_worker: _Worker | None = None

    def close(self) -> None:
        """End the workers; kill those that do not leave immediately."""
        everyone = [*self.workers.values(), *([self.pairs_worker] if self.pairs_worker else [])]
        for worker in everyone:
            # A worker that waits leaves when its input ends. One that is in a check may hang in its driver.
            if worker.settled and worker.child.ended is None:
                worker.child.close_input()
                worker.child.expect(1.0)
            else:
                worker.child.kill()
        wait_children([worker.child for worker in everyone])

    def prove_devices(self) -> None:
        """Prove each device alone, all at the same time."""
        # First all imports of torch, which have a longer limit than a check.
        self._settle(self.workers.values())
        for target in self.targets:
            self._give_device(target)
        self._settle(self.workers.values())
        for target in self.targets:
            worker = self.workers[target.name]
            if worker.child.ended is not None:
                began, end = worker.last_words()
                self._note((target,), began.check, Measured(passed=False, message=end))

    def _give_device(self, target: Target) -> None:
        def measured(began: Began, what: Measured) -> None:
            self._note((target,), began.check, what)

        job = DeviceJob(level=self.level, target=target)
        self.workers[target.name].give(job, stall_s=self.bounds.check, on_measured=measured)

    def healthy(self) -> tuple[Target, ...]:
        """Return the devices without a failure so far."""
        broken = find_broken(self.checks)
        return tuple(target for target in self.targets if target.name not in broken)

    def prove_pairs(self) -> None:
        """Prove each pair of healthy devices, one pair at a time because they share connections."""
        peers = tuple(target for target in self.healthy() if not target.is_slice)
        pairs = list(itertools.combinations(range(len(peers)), 2))
        if self.level is Level.FULL:
            # Both directions, since a connection may be bad in one of them only.
            pairs += [(second, first) for first, second in pairs]
        # A worker that hangs leaves the pairs behind it untried. The next attempt begins with them.
        for _ in range(_MAX_LOST_PAIRS):
            if not pairs:
                return
            pairs = self._try_pairs(peers, pairs)
        for pair in pairs:
            untried = Measured(passed=False, message="not tried: too many pairs before it hung")
            self._note_pair(peers, Began(check=PAIR_CHECK, pair=pair), untried)

    def _try_pairs(self, peers: Sequence[Target], pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Try pairs in one worker; return the pairs that are left because it hung or crashed."""
        if self.pairs_worker is None or self.pairs_worker.child.ended is not None:
            self.pairs_worker = _Worker(self.starter, peers)
        worker, tried = self.pairs_worker, list[tuple[int, int]]()

        def measured(began: Began, what: Measured) -> None:
            # A worker that died before its first pair uses up a pair as well, so that the attempts end.
            tried.append(began.pair or pairs[0])
            self._note_pair(peers, began, what)

        self._settle([worker])
        job = PairsJob(level=self.level, targets=tuple(peers), pairs=tuple(pairs))
        worker.give(job, stall_s=self.bounds.check, on_measured=measured)
        self._settle([worker])
        if worker.child.ended is not None:
            began, end = worker.last_words()
            measured(msgspec.structs.replace(began, check=PAIR_CHECK), Measured(passed=False, message=end))
        return [pair for pair in pairs if pair not in tried]

    def prove_collectives(self) -> None:
        """Prove all healthy devices together, one rank on each."""
        targets = self.healthy()
        if not targets:
            return
        nccl = all(target.device == "cuda" and not target.is_slice for target in targets)
        answers: list[tuple[Target, Began, Measured]] = []
        for rank, target in enumerate(targets):
            job = CollectiveJob(
                level=self.level,
                target=target,
                rank=rank,
                size=len(targets),
                backend="nccl" if nccl else "gloo",
                # A file needs neither a port nor a device.
                store=str(self.folder / "store"),
                timeout_s=self.bounds.collective,
            )
            self._give_rank(job, answers)
        self._settle_ranks([self.workers[target.name] for target in targets])
        self._judge_collectives(targets, answers)

    def _settle_ranks(self, workers: Sequence[_Worker]) -> None:
        children = [worker.child for worker in workers]

        def settled() -> bool:
            return all(worker.settled for worker in workers)

        wait_children(children, until=lambda: settled() or any(w.failed or w.child.ended for w in workers))
        # The first rank that reports a failure is often a victim. The others get a moment to report theirs.
        wait_children(children, until=settled, timeout_s=self.bounds.grace)

    def _give_rank(self, job: CollectiveJob, answers: list[tuple[Target, Began, Measured]]) -> None:
        def measured(began: Began, what: Measured) -> None:
            answers.append((job.target, began, what))

        worker = self.workers[job.target.name]
        worker.give(job, stall_s=self.bounds.collective + PREFLIGHT_COLLECTIVE_MARGIN_S, on_measured=measured)

    def _judge_collectives(
        self, targets: tuple[Target, ...], answers: Sequence[tuple[Target, Began, Measured]]
    ) -> None:
        failed = [entry for entry in answers if not entry[2].passed]
        # A rank that has reported may leave. A rank that is still silent, or died without a report, is the culprit.
        mute = [target for target in targets if not self.workers[target.name].failed]
        silent = [target for target in mute if not self.workers[target.name].settled]
        dead = [target for target in mute if self.workers[target.name].child.ended is not None]
        if not (failed or silent or dead):
            for target, began, what in answers:
                if target is targets[0]:
                    self._note(targets, f"collective_{began.check}", what)
            return
        self._accuse(targets, failed, silent, dead)

    def _accuse(
        self,
        targets: tuple[Target, ...],
        failed: Sequence[tuple[Target, Began, Measured]],
        silent: Sequence[Target],
        dead: Sequence[Target],
    ) -> None:
        """Blame the devices whose silence, death or wrong numbers explain the failures of the other ranks."""
        accused = {what.accused: (began, what) for _, began, what in failed if what.accused is not None}
        culprits = [(targets[rank], *reason) for rank, reason in accused.items()]
        for target in dead or silent if not culprits else ():
            began, end = self.workers[target.name].last_words()
            message = end if target in dead else "it did not finish; the other ranks waited for it"
            culprits.append((target, began, Measured(passed=False, message=message)))
        # If every device is accused, no single one is: the fault is between them.
        if 0 < len(culprits) < len(targets) or len(targets) == 1:
            for target, began, what in culprits or failed:
                self._note((target,), f"collective_{began.check}", what)
        else:
            _, began, what = [*failed, *culprits][0]
            self._note(targets, f"collective_{began.check}", what)

    def _settle(self, workers: Iterable[_Worker]) -> None:
        everyone = list(workers)
        wait_children([w.child for w in everyone], until=lambda: all(w.settled for w in everyone))

    def _note_pair(self, peers: Sequence[Target], began: Began, what: Measured) -> None:
        first, second = began.pair or (0, 1)
        self._note((peers[first], peers[second]), began.check, what)

    def _note(self, targets: tuple[Target, ...], check: str, what: Measured) -> None:
        self.checks.append(self._check(targets, check, what))

    def _check(self, targets: tuple[Target, ...], check: str, what: Measured) -> Check:
        return Check(
            check=check,
            devices=tuple(target.name for target in targets),
            label=_label(targets),
            passed=what.passed,
            message=what.message,
            value=what.value,
            unit=what.unit,
            duration_s=what.duration_s,
        )


def _label(targets: Sequence[Target]) -> str:
    if len(targets) <= 2:
        return " → ".join(target.label for target in targets)
    return f"all {len(targets)} devices"
