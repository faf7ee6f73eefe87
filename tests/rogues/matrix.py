"""The tests of the fault matrix: each misbehaves in one way, and is followed by one that must not suffer from it."""

from __future__ import annotations

import os
import time

import misdeeds
import pytest
import torch
import torch.distributed as dist
from fault_matrix import HANG_LIMIT_S, SIZE, Cell, chosen_cells
from torch.testing._internal.common_distributed import MultiProcessTestCase

CELLS = chosen_cells()
TIMES = os.environ.get("FAULT_TIMES", "")
"""Folder where each cell leaves the moment of its deed (wall clock)."""
GOOD = int(os.environ.get("SOAK_GOOD", "1"))
"""How many good tests follow each cell."""
GOOD_S = float(os.environ.get("SOAK_GOOD_SECONDS", "0"))
"""How long each of them lasts."""
two = pytest.mark.world_size(SIZE)


def commit(cell, rank, phase):
    """Do it, if this is the rank and the phase; whether this process is still the one that began."""
    if not isinstance(cell, Cell) or (cell.rank, cell.phase) != (rank, phase):
        return True
    deed = eval(cell.what.deed, vars(misdeeds))
    me = os.getpid()
    if TIMES:
        with open(os.path.join(TIMES, str(cell)), "w") as file:
            file.write(repr(time.clock_gettime(time.CLOCK_REALTIME)))
    deed()
    return os.getpid() == me


def parameters(kind):
    for number, cell in enumerate(cell for cell in CELLS if cell.kind == kind):
        marks = [pytest.mark.timeout(HANG_LIMIT_S)] if cell.what.slow else []
        yield pytest.param(cell, id=str(cell), marks=marks)
        for good in range(GOOD):
            yield pytest.param(None, id=f"good-{number}-{good}")


@pytest.fixture
def scene(world, cell):
    commit(cell, world.rank, "setup")
    yield
    commit(cell, world.rank, "teardown")


def act(world, cell):
    mine = torch.ones(1)
    dist.all_reduce(mine)
    assert mine.item() == world.size
    if cell is None:
        time.sleep(GOOD_S)
    if commit(cell, world.rank, "call"):
        dist.barrier()


@two
@pytest.mark.parametrize("cell", parameters("warm"))
def test_warm(world, cell, scene):
    act(world, cell)


@two
@pytest.mark.fresh_world
@pytest.mark.parametrize("cell", parameters("fresh"))
def test_fresh(world, cell, scene):
    act(world, cell)


class TestTorch(MultiProcessTestCase):
    world_size = SIZE

    def setUp(self):
        super().setUp()
        self._spawn_processes()


def _method(cell):
    def method(self):
        assert self.world_size == SIZE
        commit(cell, self.rank, "call")

    return pytest.mark.timeout(HANG_LIMIT_S)(method) if cell is not None and cell.what.slow else method


for _number, _cell in enumerate(cell for cell in CELLS if cell.kind == "torch"):
    # pytest takes the methods of a unittest class in the order of their names.
    setattr(TestTorch, f"test_{_number:03}_{_cell}".replace("-", "_"), _method(_cell))
    setattr(TestTorch, f"test_{_number:03}_{_cell}_then_good".replace("-", "_"), _method(None))
