"""Collectives and group queries inside compiled code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing import assert_close

from disttest.testing import World

from ..private import private
from .models import Graphs

pytestmark = [pytest.mark.world_size(1, 2), pytest.mark.backend("gloo"), pytest.mark.device("cpu")]


@pytest.mark.covers("DY-29", "DY-58")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_group_queries_are_constants(world: World, backend: str) -> None:
    """Compiled code returns the true world size and rank."""

    @torch.compile(backend=backend)
    def ask() -> tuple[int, int]:
        return dist.get_world_size(), dist.get_rank()

    assert ask() == (world.size, world.rank)


@pytest.mark.world_size(1)
@pytest.mark.covers("DY-38")
def test_unfinished_results_of_any_length_share_a_graph(world: World) -> None:
    """Two lengths of a collective's not yet awaited result go through one dynamic graph, with the right sums."""
    wrap = private("torch.distributed._functional_collectives._maybe_wrap_tensor")
    graphs = Graphs()

    @torch.compile(backend=graphs, fullgraph=True, dynamic=True)
    def double(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + tensor

    for length in (10, 12):
        assert_close(double(wrap(torch.ones(length))), torch.full((length,), 2.0))
    assert len(graphs) == 1


def _every_collective(tensor: torch.Tensor, group: Any) -> tuple[torch.Tensor, ...]:
    return (
        functional.all_reduce(tensor, "sum", group) + 1,
        functional.all_gather_tensor(tensor, 0, group) * 2,
        functional.reduce_scatter_tensor(functional.all_gather_tensor(tensor, 0, group), "sum", 0, group),
        functional.broadcast(tensor, 0, group),
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_functional_collectives_are_compiled_whole(world: World, backend: str) -> None:
    """All-reduce, all-gather, reduce-scatter and broadcast compile without a break and give what eager gives."""
    value = torch.arange(4.0) + 10 * world.rank
    compiled = torch.compile(_every_collective, backend=backend, fullgraph=True)
    expected = _every_collective(value, world.group)
    assert_close(compiled(value, world.group), tuple(each + 0 for each in expected))
    total = sum(torch.arange(4.0) + 10 * rank for rank in range(world.size))
    assert_close(compiled(value, world.group)[0], total + 1)


@pytest.mark.world_size(2)
@pytest.mark.covers("DY-56")
@pytest.mark.parametrize("together", [True, False])
def test_ranks_compile_again_together_when_asked(world: World, together: bool) -> None:
    """One rank's guard fails: with guard collectives all compile again, without them only that rank."""
    set_enabled = private("torch.compiler.set_enable_guard_collectives")
    graphs = Graphs()

    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    compiled = torch.compile(twice, backend=graphs, dynamic=False)
    before = set_enabled(together)
    try:
        compiled(torch.ones(3))
        compiled(torch.ones(4 if world.is_first else 3))
    finally:
        set_enabled(before)
    assert len(graphs) == (2 if together or world.is_first else 1)
