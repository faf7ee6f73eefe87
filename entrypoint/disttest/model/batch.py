"""Slots, and the batches of tests that a scheduler assigns to them."""

from __future__ import annotations

from disttest.model.cases import Isolation, WorldShape
from disttest.model.frozen import Frozen


class Slot(Frozen):
    """A place for a rank: a GPU, a MIG slice, or a share of the CPU."""

    name: str
    """``cpu:0``, ``gpu:3``; unique on the machine."""
    device: str = "cpu"
    """Device type: ``cpu`` or ``cuda``."""
    index: int = 0
    uuid: str = ""
    """UUID of the GPU, by which its world sees it; empty for the CPU."""
    group: str = ""
    """Slots of one group are close to each other: GPUs on one NVLink, CPU shares of one NUMA node."""


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
