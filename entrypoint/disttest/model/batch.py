"""What a scheduler hands out, and what it gives it to."""

from __future__ import annotations

from disttest.model.cases import Isolation, WorldShape
from disttest.model.frozen import Frozen


class Slot(Frozen):
    """Something a rank can sit on: a GPU, a MIG slice, or a share of the CPU."""

    name: str
    """``cpu:0``, ``gpu:3``; unique on the machine."""
    device: str = "cpu"
    """Device type: ``cpu`` or ``cuda``."""
    index: int = 0
    uuid: str = ""
    """The GPU's UUID, which is what its world gets to see; empty for the CPU."""
    group: str = ""
    """Slots of one group are near each other: GPUs behind one NVLink, CPU shares of one NUMA node."""


class Batch(Frozen):
    """Tests that run one after another in worlds of one shape, on one set of slots."""

    batch_id: str
    nodeids: tuple[str, ...]
    """In the order in which they run."""
    shape: WorldShape
    isolation: Isolation
    expected_s: float = 0.0
    """How long it is expected to take, world start included; 0 when nothing is known."""
    exclusive: bool = False
    """Nothing else may run meanwhile."""
    shares: bool = False
    """Its ranks may share GPUs: tests that start their ranks by themselves say what they need by themselves."""
    urgent: bool = False
    """It starts before all others: one of its tests failed last time and ``--failed-first`` was given."""
