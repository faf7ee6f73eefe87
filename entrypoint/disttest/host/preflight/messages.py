"""What the preflight and its workers say to each other, and what comes of it."""

from __future__ import annotations

from enum import StrEnum
from typing import dataclass_transform

import msgspec

from disttest.model import Frozen

PAIR_CHECK = "peer_copy"
"""Name of the check of a pair."""


class Level(StrEnum):
    """How much work the preflight does on each device."""

    QUICK = "quick"
    FULL = "full"


class Target(Frozen):
    """A device to prove."""

    name: str
    """Name of its slot: ``gpu:3``, ``cpu:0``."""
    label: str
    """How messages name it: ``GPU 3 (uuid, bus id)``."""
    device: str = "cpu"
    """Device type of the computation: ``cuda`` or ``cpu``."""
    visible: str = ""
    """UUID for ``CUDA_VISIBLE_DEVICES``."""
    is_slice: bool = False
    """A MIG slice, which has no peers and which NCCL refuses."""


class Check(Frozen):
    """One thing that was tried on one device, on a pair, or on all of them."""

    check: str
    devices: tuple[str, ...]
    """Names of the slots."""
    label: str
    """How messages name these devices."""
    passed: bool
    message: str = ""
    """What went wrong."""
    value: float | None = None
    unit: str = ""
    duration_s: float = 0.0


class PreflightResult(Frozen):
    """What came of a preflight."""

    checks: tuple[Check, ...]
    broken: dict[str, str] = msgspec.field(default_factory=dict)
    """Slot name -> why it must not be used."""
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Job(msgspec.Struct, frozen=True, kw_only=True, tag_field="job", tag=True):
    """Base of what a worker can be asked to do."""

    level: Level = Level.QUICK


class DeviceJob(Job, tag="device"):
    """Prove one device."""

    target: Target


class PairsJob(Job, tag="pairs"):
    """Copy between the devices of each pair."""

    targets: tuple[Target, ...]
    pairs: tuple[tuple[int, int], ...]
    """Places in ``targets``."""


class CollectiveJob(Job, tag="collective"):
    """Be one rank of the collectives."""

    target: Target
    rank: int
    size: int
    backend: str
    store: str
    """Path of the file where the ranks meet."""
    timeout_s: float


AnyJob = DeviceJob | PairsJob | CollectiveJob


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="says", tag=True):
    """Base of what a worker says."""


class Ready(Word, tag="ready"):
    """torch is imported; or the job is done: the worker waits for one."""


class Began(Word, tag="began"):
    """A check begins. If nothing follows, this is the one that hangs or crashes."""

    check: str
    pair: tuple[int, int] | None = None


class Measured(Word, tag="measured"):
    """The check that began last has ended."""

    passed: bool
    message: str = ""
    value: float | None = None
    unit: str = ""
    duration_s: float = 0.0
    accused: int | None = None
    """The rank whose contribution was wrong, where the check can tell."""


AnyWord = Ready | Began | Measured
