"""Messages between the preflight and its workers, its result, and the devices that a failure accuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import dataclass_transform

import msgspec

from disttest.model import Frozen

PAIR_CHECK = "peer_copy"
"""Name of the check of a pair."""


class Level(StrEnum):
    """Amount of work per device."""

    QUICK = "quick"
    FULL = "full"


class Target(Frozen):
    """A device to prove."""

    name: str
    """Name of its slot: ``gpu:3``, ``cpu:0``."""
    label: str
    """Name of the device in messages: ``GPU 3 (uuid, bus id)``."""
    device: str = "cpu"
    """Device type of the computation: ``cuda`` or ``cpu``."""
    visible: str = ""
    """Name for ``CUDA_VISIBLE_DEVICES``; empty on the CPU."""
    is_slice: bool = False
    """Whether it is a MIG slice, which has no peers and which NCCL refuses."""


class Check(Frozen):
    """The result of one check of one device, of a pair, or of all devices."""

    check: str
    devices: tuple[str, ...]
    """Names of the slots."""
    label: str
    """Name of these devices in messages."""
    passed: bool
    message: str = ""
    """The failure; empty if it passed."""
    value: float | None = None
    unit: str = ""
    duration_s: float = 0.0


class PreflightResult(Frozen):
    """The result of a preflight."""

    checks: tuple[Check, ...]
    broken: dict[str, str] = msgspec.field(default_factory=dict)
    """Slot name, mapped to the reason why it must not be used."""
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Job(msgspec.Struct, frozen=True, kw_only=True, tag_field="job", tag=True):
    """Base of all jobs of a worker."""

    level: Level = Level.QUICK


class DeviceJob(Job, tag="device"):
    """Prove one device."""

    target: Target


class PairsJob(Job, tag="pairs"):
    """Copy between the devices of each pair."""

    targets: tuple[Target, ...]
    pairs: tuple[tuple[int, int], ...]
    """Indices into ``targets``."""


class CollectiveJob(Job, tag="collective"):
    """Run as one rank of the collectives."""

    target: Target
    rank: int
    size: int
    backend: str
    store: str
    """Path of the file that the ranks rendezvous with."""
    timeout_s: float


AnyJob = DeviceJob | PairsJob | CollectiveJob


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="says", tag=True):
    """Base of all messages of a worker."""


class Ready(Word, tag="ready"):
    """torch is imported or the last job is done. The worker waits for a job."""


class Began(Word, tag="began"):
    """A check begins. If no other message follows, this check hangs or has crashed."""

    check: str
    pair: tuple[int, int] | None = None


class Measured(Word, tag="measured"):
    """The result of the check that began last."""

    passed: bool
    message: str = ""
    value: float | None = None
    unit: str = ""
    duration_s: float = 0.0
    accused: int | None = None
    """Rank whose contribution was wrong, if the check can determine it."""


AnyWord = Ready | Began | Measured


def find_broken(checks: Sequence[Check]) -> dict[str, str]:
    """Return the devices that account for all failures, by slot name, with the reason."""
    # A check of one device accuses that device. In a failing pair either end may be at fault: the device with the
    # most failing pairs is blamed until every pair is explained. A collective that accuses no single rank, on devices
    # that all passed alone and in pairs, condemns all of them: no world can run there.
    failed = [check for check in checks if not check.passed]
    pairs = [check for check in failed if check.check == PAIR_CHECK]
    broken = {check.devices[0]: _reason(check) for check in reversed(failed) if len(check.devices) == 1}
    broken.update(_worst_of_pairs(pairs, broken))
    for check in failed:
        if check.check != PAIR_CHECK and len(check.devices) > 1 and not broken.keys() & set(check.devices):
            broken.update(dict.fromkeys(check.devices, _reason(check)))
    return broken


def _reason(check: Check) -> str:
    return f"{check.check} failed on {check.label}: {check.message}"


def _worst_of_pairs(pairs: Sequence[Check], known: Iterable[str]) -> dict[str, str]:
    blamed: dict[str, str] = {}
    open_pairs = [pair for pair in pairs if not set(pair.devices) & set(known)]
    while open_pairs:
        count = Counter(device for pair in open_pairs for device in pair.devices)
        # Excluding either device of a pair ends the failures, and excluding both wastes one. Ties go to the higher
        # index.
        worst = max(count, key=lambda device: (count[device], device))
        theirs = [pair for pair in open_pairs if worst in pair.devices]
        blamed[worst] = _reason(theirs[0])
        open_pairs = [pair for pair in open_pairs if pair not in theirs]
    return blamed
