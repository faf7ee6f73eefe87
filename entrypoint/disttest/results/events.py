"""Events of a run. Each is one line of ``events.jsonl``, tagged with its type."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec

from disttest.model import (
    SCHEMA_VERSION,
    Code,
    Count,
    Hardware,
    Invocation,
    Moment,
    ShardSpan,
    TestCase,
    TestResult,
    WorldShape,
)


# Default values are omitted: most fields of most events have them, and a reader restores them.
@dataclass_transform(frozen_default=True, kw_only_default=True)
class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag=True):
    """Base of all events."""

    at_s: Moment
    """Seconds since the epoch, on a clock that never jumps within a run."""


class RunStarted(Event, tag="run_started"):
    """The controller has started."""

    run_id: str
    argv: tuple[str, ...]
    root: str
    """Directory to which node ids and files are relative."""
    hardware: Hardware
    slots: Count
    disttest: str
    schema_version: int = SCHEMA_VERSION
    plan_id: str = ""
    """The plan of which this run is a shard; empty for a whole run."""
    shard: Count | None = None
    """Number of that shard."""
    invocation: Invocation = Invocation()
    cpu_slots: Count = 0
    """CPU slots in addition to the GPUs that ``slots`` counts, if worlds of the run compute on both."""


class TestCollected(Event, tag="test_collected"):
    """A test that must get a result."""

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
    """Names of its slots: ``cpu:0``, ``gpu:3``."""
    pid: int


class WorldEnded(Event, tag="world_ended"):
    """All processes of a world have ended, and its slots are free or quarantined."""

    world_id: str
    reason: str = ""


class TestStarted(Event, tag="test_started"):
    """An attempt of a test began."""

    __test__ = False

    nodeid: str
    attempt: Count = 1
    world_id: str = ""


class TestFinished(Event, tag="test_finished"):
    """An attempt of a test has its result."""

    __test__ = False

    result: TestResult
    again: bool = False
    """Whether the attempt failed and another one will follow if the run lasts."""


class Noted(Event, tag="noted"):
    """A note for the reader: a fallback, a warning."""

    message: str
    nodeid: str = ""
    shown: bool = False
    """Whether pytest has printed it, so that the view need not."""


class ShardJoined(Event, tag="shard_joined"):
    """A merge has read all events of one shard; only in journals written by ``disttest merge``."""

    shard: ShardSpan


class RunFinished(Event, tag="run_finished"):
    """The last event. A journal without it belongs to a run that died."""

    exit_code: Code
    reason: str = ""
    """Reason for an early end; empty if the run was completed."""


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
