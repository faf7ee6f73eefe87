"""Uneven inputs: ranks that run out shadow the others' collectives, and training ends everywhere with one model."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join

from disttest.testing.world import World

from ..ranks import exchange
from ..replicas import assert_same_everywhere
from .models import DOUBLE, Apply, TwoHeads, linear
from .training import batches, descend, parameters, share, twin, wrap

pytestmark = [pytest.mark.world_size(min=2), pytest.mark.usefixtures("leave_together")]


def _ones(world: World, value: float = 1.0) -> torch.Tensor:
    return torch.full((1, 1), value, dtype=DOUBLE, device=world.device)


@pytest.mark.covers("CD-229")
@pytest.mark.parametrize("by_initial_size", [True, False], ids=["by-all", "by-active"])
def test_divisor(world: World, by_initial_size: bool) -> None:
    """Once rank 0 has joined, gradients are divided by all ranks or by those that still train, as asked."""
    together = wrap(world, linear(1, 1))
    seen = []
    with together.join(divide_by_initial_world_size=by_initial_size):
        for _ in range(3 if world.is_first else 5):
            together.zero_grad()
            together(_ones(world, 50)).sum().backward()
            seen.append(together.module.weight.grad.item())
    alone = 50.0 * (world.size - 1) / world.size if by_initial_size else 50.0
    assert seen == pytest.approx([50.0] * 3 + ([] if world.is_first else [alone] * 2))


@pytest.mark.covers("CD-230")
def test_equals_training_on_all_inputs(world: World) -> None:
    """Rank r has 2(r+1) inputs; the model equals one that saw them all, one step per synchronised round."""
    model = linear(1, 1)
    alone, together = twin(world, model), wrap(world, model)
    with together.join():
        for step in range(2 * (world.rank + 1)):
            together(_ones(world, world.rank + step)).square().sum().backward()
            descend(together, rate=0.001)
    for step in range(2 * world.size):
        active = [rank for rank in range(world.size) if step < 2 * (rank + 1)]
        for rank in active:
            (alone(_ones(world, rank + step)).square().sum() / world.size).backward()
        descend(alone, rate=0.001)
    torch.testing.assert_close(parameters(together), parameters(alone))
    assert_same_everywhere(world, parameters(together))


def _batch_norm() -> nn.Module:
    return nn.Sequential(linear(), nn.BatchNorm1d(6, dtype=DOUBLE), linear(6, 1))


def _convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3, dtype=DOUBLE), nn.Flatten(), linear(16, 1)
    )


def _unused() -> nn.Module:
    return Apply(lambda heads, x: heads(x)[0], TwoHeads(unused=True))


def _allreduce(model: nn.Module) -> None:
    model.register_comm_hook(None, default_hooks.allreduce_hook)


def _power_sgd(model: nn.Module) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


_MODELS = {
    "linear": (linear, None),
    "batch-norm": (_batch_norm, None),
    "convolution": (_convolution, None),
    "unused": (_unused, None),
    "allreduce-hook": (linear, _allreduce),
    "powersgd-hook": (linear, _power_sgd),
}


def _inputs_of(rank: int, *, early: int, base: int, offset: int) -> int:
    """How many inputs a rank has: the first ``early`` ranks run out first, the second of two a bit later."""
    if rank >= early:
        return base + offset
    return base + offset // 2 if (early, rank) == (2, 1) else base


@pytest.mark.covers("CD-232")
@pytest.mark.parametrize("sync_interval", [1, 2], ids=["plain", "no-sync"])
@pytest.mark.parametrize(("early", "base", "offset"), [(1, 0, 3), (1, 5, 2), (2, 5, 10)], ids=str)
@pytest.mark.parametrize("kind", list(_MODELS))
def test_uneven_inputs(
    world: World, kind: str, early: int, base: int, offset: int, sync_interval: int
) -> None:
    """Whatever the model, the hook and who runs out first: all inputs are used and all ranks end with one model."""
    if early >= world.size:
        pytest.skip(f"{early} early ranks need a larger world than {world.size}")
    make, register = _MODELS[kind]
    together = wrap(world, make(), find_unused_parameters=kind == "unused", bucket_cap_mb=1)
    if register is not None:
        register(together)
    count = _inputs_of(world.rank, early=early, base=base, offset=offset)
    data = batches(world, count, per_rank=3)
    with together.join():
        for step, batch in enumerate(data):
            if step % sync_interval:
                with together.no_sync():
                    together(share(world, batch)).square().mean().backward()
                continue
            together(share(world, batch)).square().mean().backward()
            descend(together)
    assert_same_everywhere(world, parameters(together))
    assert_same_everywhere(world, list(together.buffers()))
    assert set(exchange(world, together._authoritative_rank)) == {world.size - 1}
    assert together._get_ddp_logging_data()["join_uneven_inputs"]


@pytest.mark.covers("CD-231", "CD-232")
@pytest.mark.parametrize("communicates", [False, True], ids=["plain", "forward-communicates"])
def test_early_termination(world: World, communicates: bool) -> None:
    """``throw_on_early_termination``: all ranks stop after the same step, and each says who ran out."""

    def forward(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if communicates:
            dist.all_reduce(x)
        return layer(x)

    together = wrap(world, Apply(forward))
    data = batches(world, 5 if world.rank else 8)
    steps = 0
    text = (
        f"Rank {world.rank} exhausted all inputs"
        if world.rank
        else "Detected at least one rank that exhausted inputs"
    )
    with pytest.raises(RuntimeError, match=text), together.join(throw_on_early_termination=True):
        for batch in data:
            together(share(world, batch)).square().mean().backward()
            descend(together, rate=0.01)
            steps += 1
    assert exchange(world, steps) == [5] * world.size
    assert_same_everywhere(world, parameters(together))


@pytest.mark.covers("CD-233")
def test_disabled(world: World) -> None:
    """``join(enable=False)`` is plain DDP."""
    together = wrap(world, linear())
    alone = twin(world, together.module)
    with together.join(enable=False):
        for batch in batches(world, 3):
            together(share(world, batch)).square().mean().backward()
            alone(batch).square().mean().backward()
            torch.testing.assert_close(together.module.weight.grad, alone.weight.grad)
            descend(together, alone)
    assert not together._join_config.enable


@pytest.mark.covers("CD-234")
def test_exception_of_the_body(world: World) -> None:
    """An exception inside the context comes out as it is."""
    together = wrap(world, linear())
    with pytest.raises(ValueError, match="^on purpose$"), together.join():
        for batch in batches(world, 2):
            together(share(world, batch)).sum().backward()
            raise ValueError("on purpose")


@pytest.mark.covers("CD-232")
def test_two_models_join_together(world: World) -> None:
    """``Join`` carries two wrapped models at once, each with its own forward and backward."""
    models = [wrap(world, linear()), wrap(world, linear())]
    with Join(models):
        for batch in batches(world, world.rank + 1):
            for model in models:
                model(share(world, batch)).square().mean().backward()
            descend(*models)
    for model in models:
        assert_same_everywhere(world, parameters(model))
