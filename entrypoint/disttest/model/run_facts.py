"""What a run ran on, and what it was asked."""

from __future__ import annotations

from typing import Any

import msgspec

from disttest.model.frozen import Code, Count, Frozen, Moment


class Hardware(Frozen):
    """The machine as far as a report needs it."""

    cpus: Count
    gpus: tuple[str, ...] = ()
    """Model names by index."""
    python: str = ""
    torch: str = ""
    platform: str = ""
    driver: str = ""
    """Version of the GPUs' driver."""
    cuda: str = ""
    """Newest CUDA version that it serves."""
    memory: int = 0
    """Bytes that this run may use."""
    shm: int = 0
    """Bytes of ``/dev/shm``."""
    uuids: tuple[str, ...] = ()
    """Of the GPUs, by index."""


class Invocation(Frozen):
    """What a run was asked, as far as it takes to ask the same of one test again."""

    cwd: str = ""
    """The directory it was started in."""
    workspace: str = ""
    """Root of the repository, where the environment says it (``GITHUB_WORKSPACE``)."""
    bundled: bool = False
    """Its tests are suites that come with disttest."""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    """Option -> value, as they were given by flags and variables; secret ones are left out."""
    pytest_args: tuple[str, ...] = ()
    """Arguments for pytest, without the tests and without ours."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Those variables that decide how classes of torch's kind run, where they were set."""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    """Name of a plugin -> its data of the run, as JSON."""


class RunPart(Frozen):
    """Which part of a divided run this run is."""

    plan_id: str
    shard: Count
    """Number of the part in the plan."""
    is_empty: bool = False
    """The plan has no test for it, so nothing to run is a success."""


class ShardSpan(Frozen):
    """What one shard brought into a merged result."""

    shard: Count | None
    """Its number in the plan; None when it was not run from a plan."""
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
    """What the names of its worlds and slots begin with, before a slash."""
    cpu_slots: Count = 0
    """Slots of the CPU beside the GPUs that ``slots`` counts, where its worlds computed on both."""
