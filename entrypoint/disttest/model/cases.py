"""Tests, the shapes of their worlds, and the slots and batches in which they run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from disttest.model.frozen import Frozen


class Isolation(StrEnum):
    """Whether a test gets new processes or may follow another test in living ones."""

    FRESH = "fresh"
    WARM = "warm"


class WorldKind(StrEnum):
    """The way in which a test gets its ranks."""

    RANKS = "ranks"
    """Every rank runs the test."""
    MAIN = "main"
    """A main process runs the test and starts the ranks: torch's ``MultiProcessTestCase`` and similar classes."""
    THREADS = "threads"
    """A main process runs the test, and its ranks are threads of it, or simulated: ``MultiThreadedTestCase``."""
    PROCESS = "process"
    """There are no ranks: an ordinary test, isolated in a supervised process."""


FEW_RANKS = 16
"""Size of the largest world whose ranks all get processors within the limits of time that suit two ranks."""


class WorldShape(Frozen):
    """Shape of the world in which a test runs."""

    size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    backend: str
    device: str = "cpu"
    """Device type of the ranks: ``cpu`` or ``cuda``."""
    nodes: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    """Number of machines over which the ranks are spread evenly."""

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on each machine."""
        return self.size // self.nodes

    def __str__(self) -> str:
        spread = f"@{self.nodes}nodes" if self.nodes > 1 else ""
        # This form works with `-k` and in shells without quotes, and is the same on every machine.
        return f"{self.size}x{self.backend}{spread}"


ALONE = WorldShape(size=1, backend="none")
"""Shape of an isolated test, which is not a world: one process without a group."""


class TestCase(Frozen):
    """A test as it is reported: a pytest item at one world size and backend."""

    __test__ = False  # pytest, this is not a test class

    nodeid: str
    slug: str
    """Name of its log folder: unique in the run, safe on any file system."""
    classname: str
    name: str
    file: str
    """Path relative to the root directory of the run."""
    line: int
    """Line number, from 1."""
    suite: str
    world: WorldShape | None = None
    """None for an ordinary test, which runs in the controller unless it is isolated."""
    kind: WorldKind = WorldKind.RANKS
    isolation: Isolation = Isolation.FRESH
    timeout_s: float = 300.0
    exclusive: bool = False
    """Whether no other test may run at the same time."""
    ranks_may_differ: bool = False
    """Whether the test is marked so that ranks may skip it, or expect a failure, where others do not."""
    collected_as: str = ""
    """Node id that selects the test if its own does not, because a hook added its world after collection."""
    reuses_ranks: bool = False
    """Whether ranks that its class started for another test may run this one."""
    new_ranks_because: str = ""
    """The reason why its class starts new ranks for it; empty if not applicable."""
    shares_process: bool = False
    """Whether it is isolated in a file that depends on the set-up of others; such files run in one process."""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    """Plugin name -> its JSON data of the test."""

    @property
    def selected_by(self) -> str:
        """Node id that selects the test on a command line."""
        return self.collected_as or self.nodeid

    @property
    def reuse_text(self) -> str:
        """Whether its class reuses ranks or starts new ones, with the reason; empty if not applicable."""
        return "reused" if self.reuses_ranks else f"new: {why}" if (why := self.new_ranks_because) else ""

    def log_folder(self, attempt: int) -> str:
        """Return the folder of an attempt's logs, relative to the results directory."""
        return f"logs/{self.slug}/attempt-{attempt}"


class Slot(Frozen):
    """A place for a rank: a GPU, a MIG slice, or a share of the CPU."""

    name: str
    """``cpu:0``, ``gpu:3``; unique on the machine."""
    device: str = "cpu"
    """Device type: ``cpu`` or ``cuda``."""
    index: int = 0
    uuid: str = ""
    """UUID of the GPU, if its driver knows one; empty for the CPU."""
    group: str = ""
    """Slots of one group are close to each other: GPUs on one NVLink, CPU shares of one NUMA node."""

    @property
    def visible_name(self) -> str:
        """Name of its GPU in ``CUDA_VISIBLE_DEVICES``."""
        # CUDA and NVML number GPUs in different orders, so that an index alone may name another GPU.
        return self.uuid or str(self.index)


class Batch(Frozen):
    """Tests that run one after another in worlds of one shape, on one set of slots."""

    batch_id: str
    nodeids: tuple[str, ...]
    """Node ids, in the order in which they run."""
    shape: WorldShape
    isolation: Isolation
    expected_s: float = 0.0
    """Expected duration, including the start of the world; 0 if unknown."""
    exclusive: bool = False
    """Whether no other test may run at the same time."""
    shares: bool = False
    """Whether its ranks may share GPUs: tests that start their ranks state their own needs."""
    urgent: bool = False
    """Whether it starts before all others: one of its tests failed last time and ``--failed-first`` was given."""


def is_inside(nodeid: str, collector: str) -> bool:
    """Whether a test is in a file, class or folder; ``.`` is the root directory."""
    return collector == "." or nodeid.startswith((f"{collector}::", f"{collector}/"))


def parts_of(nodeid: str) -> tuple[str, list[str], str]:
    """Split a node id into its file, its classes, and its name with the parameters, which may contain ``::``."""
    file, _, rest = nodeid.partition("::")
    # First the parameters: in `test_x.py::test_sum[a::b]` the second `::` separates nothing.
    path, bracket, parameters = rest.partition("[")
    *classes, name = path.split("::") if rest else [file]
    return file, classes, name + bracket + parameters
