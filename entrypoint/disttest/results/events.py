"""What a run can say. Each event is one line of ``events.jsonl``, tagged with its type."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec

from disttest.model import (
    SCHEMA_VERSION,
    Code,
    Count,
    CpuStep,
    Hardware,
    Invocation,
    Moment,
    ShardSpan,
    TestCase,
    TestResult,
    WorldShape,
)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag=True):
    """Base of all events."""

    at_s: Moment
    """Seconds since the epoch, on a clock that never jumps within a run."""


class RunStarted(Event, tag="run_started"):
    """The controller is up."""

    run_id: str
    argv: tuple[str, ...]
    root: str
    """Directory that node ids and files are relative to."""
    hardware: Hardware
    slots: Count
    disttest: str
    schema_version: int = SCHEMA_VERSION
    plan_id: str = ""
    """The plan that this run is a shard of; empty when it is a whole run."""
    shard: Count | None = None
    """The number of that shard."""
    invocation: Invocation = Invocation()
    cpu_slots: Count = 0
    """Slots of the CPU beside the GPUs that ``slots`` counts, where worlds of the run compute on both."""


class TestCollected(Event, tag="test_collected"):
    """A test that this run owes a result."""

    __test__ = False

    test: TestCase


class CollectionFailed(Event, tag="collection_failed"):
    """A file could not be collected."""

    nodeid: str
    message: str


class WorldStarted(Event, tag="world_started"):
    """A world was forked onto its slots."""

    world_id: str
    shape: WorldShape
    slots: tuple[str, ...]
    """Names of the slots it holds: ``cpu:0``, ``gpu:3``."""
    pid: int


class WorldEnded(Event, tag="world_ended"):
    """All processes of a world are gone and its slots are free (or quarantined)."""

    world_id: str
    reason: str = ""
    cpu_steps: tuple[CpuStep, ...] = ()
    """What its life has cost, step by step; only where it was asked for."""


class TestStarted(Event, tag="test_started"):
    """An attempt of a test began."""

    __test__ = False

    nodeid: str
    attempt: Count = 1
    world_id: str = ""


class TestFinished(Event, tag="test_finished"):
    """An attempt of a test has its verdict."""

    __test__ = False

    result: TestResult
    again: bool = False
    """It failed and is going to be tried again, if the run lasts that long."""


class Noted(Event, tag="noted"):
    """Something about the run that a reader should know: a fallback, a warning."""

    message: str
    nodeid: str = ""
    shown: bool = False
    """Pytest has printed it already, so that whoever shows the run need not."""


class ShardJoined(Event, tag="shard_joined"):
    """A merge took in all that one shard reported; only in the journals that ``disttest merge`` writes."""

    shard: ShardSpan


class RunFinished(Event, tag="run_finished"):
    """The last event. A journal without it is of a run that died."""

    exit_code: Code
    reason: str = ""
    """Why the run ended early; empty when it ran to its end."""


AnyEvent = (
    RunStarted
    | TestCollected
    | CollectionFailed
    | WorldStarted
    | WorldEnded
    | TestStarted
    | TestFinished
    | Noted
    | ShardJoined
    | RunFinished
)
