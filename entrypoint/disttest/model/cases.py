"""What a test is: a pytest item in a world of one shape."""

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
    """How a test meets its ranks."""

    RANKS = "ranks"
    """Every rank runs the test itself."""
    MAIN = "main"
    """A main process runs the test and starts the ranks: torch's ``MultiProcessTestCase`` and its kind."""
    THREADS = "threads"
    """A main process runs the test and its ranks are threads of it, or simulated: ``MultiThreadedTestCase``."""
    PROCESS = "process"
    """There are no ranks: an ordinary test, contained in a process that is watched over."""


class WorldShape(Frozen):
    """What kind of world a test runs in."""

    size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    backend: str
    device: str = "cpu"
    """Device type of the ranks: ``cpu`` or ``cuda``."""
    nodes: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    """Machines that the ranks are spread over, the same number on each."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each machine."""
        return self.size // self.nodes

    def __str__(self) -> str:
        spread = f"@{self.nodes}nodes" if self.nodes > 1 else ""
        return f"{self.size}x{self.backend}{spread}"


ALONE = WorldShape(size=1, backend="none")
"""What a contained test runs in, which is no world: one process, without a group."""


class TestCase(Frozen):
    """One test as it is reported: a pytest item at one world size and backend."""

    __test__ = False  # pytest, this is not a test class

    nodeid: str
    slug: str
    """Name of its log folder: unique in the run, safe in any file system."""
    classname: str
    name: str
    file: str
    """Path relative to the root directory of the run."""
    line: int
    """Counted from 1."""
    suite: str
    world: WorldShape | None = None
    """None for an ordinary test, which runs in the controller unless it is contained."""
    kind: WorldKind = WorldKind.RANKS
    isolation: Isolation = Isolation.FRESH
    timeout_s: float = 300.0
    exclusive: bool = False
    """Nothing else may run meanwhile."""
    ranks_may_differ: bool = False
    """Marked so: ranks may skip what others run, or expect a failure where others do not."""
    collected_as: str = ""
    """The node id to select it by, where its own cannot: a hook asked for its world when all was collected."""
    reuses_ranks: bool = False
    """Its class starts its ranks, and those that have passed another test of the class may run this one."""
    new_ranks_because: str = ""
    """Why the ranks that its class starts are new for it; empty where that is no question."""
    shares_process: bool = False
    """Contained, and in a file that needs what others have set up: such files run in one process."""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    """Name of a plugin -> its data of the test, as JSON."""

    @property
    def selected_by(self) -> str:
        """The node id that selects it on a command line."""
        return self.collected_as or self.nodeid

    @property
    def words_of_reuse(self) -> str:
        """Whether the ranks that its class starts are new ones, and why; empty where that is no question."""
        return "reused" if self.reuses_ranks else f"new: {why}" if (why := self.new_ranks_because) else ""

    def log_folder(self, attempt: int) -> str:
        """Where the logs of an attempt come to lie, relative to the results directory."""
        return f"logs/{self.slug}/attempt-{attempt}"
