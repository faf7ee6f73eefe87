"""Machine, request, rules and cost of a run."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from disttest.model.frozen import Code, Count, Frozen, Moment


class Hardware(Frozen):
    """The machine, as far as reports need it."""

    cpus: Count
    gpus: tuple[str, ...] = ()
    """Model names by index."""
    python: str = ""
    torch: str = ""
    platform: str = ""
    driver: str = ""
    """Version of the GPU driver."""
    cuda: str = ""
    """Newest CUDA version that the driver supports."""
    memory: int = 0
    """Bytes of memory that this run may use."""
    shm: int = 0
    """Bytes of ``/dev/shm``."""
    uuids: tuple[str, ...] = ()
    """UUIDs of the GPUs, by index."""


class CiJob(Frozen):
    """Job of a CI service whose log interprets commands."""

    shield: Callable[[str], str]
    """Makes commands in a text ineffective; disttest prints texts of tests."""
    fold: Callable[[str], str]
    """Returns the line that begins a foldable block with this title."""
    end_fold: str
    """The line that ends a foldable block."""
    name: str = ""
    """Name for users of other runs on the same machine."""
    workspace: str = ""
    """Root of the repository."""


class Invocation(Frozen):
    """The request of a run, as far as it is needed to repeat one of its tests."""

    cwd: str = ""
    """Directory in which the run was started."""
    workspace: str = ""
    """Root of the repository, if the job of a CI service names it."""
    bundled: bool = False
    """Whether its tests are suites that come with disttest."""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    """Option -> value, as given by flags and variables; secret options are left out."""
    pytest_args: tuple[str, ...] = ()
    """Arguments for pytest, without the tests and disttest's own arguments."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Environment variables that affect torch's test classes, if they were set."""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    """Plugin name -> its JSON data of the run."""


class RunPart(Frozen):
    """The part of a divided run that this run is; without values for a whole run."""

    plan_id: str = ""
    shard: Count | None = None
    """Number of the part in the plan."""
    is_empty: bool = False
    """Whether the plan assigns no test to this part, so that a run without tests is a success."""


class ShardSpan(Frozen):
    """Contribution of one shard to a merged result."""

    shard: Count | None
    """Number of the shard in the plan; None if it was not run from a plan."""
    run_id: str
    directory: str
    """Its results directory, relative to the merged one."""
    hardware: Hardware
    slots: Count
    started_at_s: Moment
    ended_at_s: Moment
    exit_code: Code
    reason: str = ""
    label: str = ""
    """Prefix of the names of its worlds and slots, before a slash."""
    cpu_slots: Count = 0
    """CPU slots in addition to the GPUs that ``slots`` counts, if its worlds computed on both."""


class VerdictRule(StrEnum):
    """The rules that judge a test of kind ``main``."""

    STRICT = "strict"
    """Every rank counts."""
    TORCH = "torch"
    """As in torch's own harness: after errors, only rank 0 counts."""


class FlakyRule(StrEnum):
    """The treatment of a test that passed only on a retry."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
