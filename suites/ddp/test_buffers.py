"""Buffers: broadcast before each forward, left alone when told so, or synchronised by a hook."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel.distributed import _BufferCommHookLocation

from disttest.testing.world import World

from ..ranks import exchange
from ..replicas import assert_different_everywhere, assert_same_everywhere
from .models import DOUBLE, Counter, linear
from .training import batches, require_option, share, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


def _set(world: World, model: nn.Module) -> None:
    """Give the buffer a value of this rank's own."""
    model.module.steps.fill_(100 * (world.rank + 1))


@pytest.mark.covers("CD-279")
def test_forward_broadcasts_the_first_ranks_buffer(world: World) -> None:
    """Each forward starts from the buffer of rank 0."""
    together = wrap(world, Counter())
    for batch in batches(world, 2):
        _set(world, together)
        together(share(world, batch)).sum().backward()
        assert together.module.steps.tolist() == [101.0, 101.0]


@pytest.mark.covers("CD-279")
def test_no_sync_broadcasts_once(world: World) -> None:
    """Under ``no_sync`` only the first forward after a synchronised step broadcasts; later ones leave buffers alone."""
    together = wrap(world, Counter())
    batch = share(world, batches(world, 1)[0])
    with together.no_sync():
        for expected in (101.0, 100.0 * (world.rank + 1) + 1):
            _set(world, together)
            together(batch).sum().backward()
            assert together.module.steps[0].item() == expected


@pytest.mark.covers("CD-280")
def test_buffers_synchronised_at_construction_only(world: World) -> None:
    """With ``forward_sync_buffers=False`` construction copies rank 0's buffers, and forward none."""
    require_option("forward_sync_buffers")
    model = Counter()
    model.steps.fill_(world.rank)
    together = wrap(world, model, forward_sync_buffers=False)
    assert together.module.steps.tolist() == [0.0, 0.0]
    _set(world, together)
    together(share(world, batches(world, 1)[0])).sum().backward()
    assert together.module.steps.tolist() == [100.0 * (world.rank + 1) + 1] * 2


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-235")
def test_join_leaves_buffers_alone(world: World) -> None:
    """With ``forward_sync_buffers=False`` the last synchronisation of ``join`` spares the buffers too."""
    require_option("forward_sync_buffers")
    together = wrap(world, Counter(), forward_sync_buffers=False)
    _set(world, together)
    with Join([together]):
        for batch in batches(world, 1 + world.rank):
            together(share(world, batch)).sum().backward()
    assert together.module.steps.tolist() == [100.0 * (world.rank + 1) + 1 + world.rank] * 2


@pytest.mark.covers("CD-281")
@pytest.mark.parametrize("value", [True, False])
def test_old_argument_warns(world: World, value: bool) -> None:
    """``broadcast_buffers`` still works, with a FutureWarning; the new argument wins and is silent."""
    require_option("forward_sync_buffers")
    with pytest.warns(FutureWarning, match="broadcast_buffers"):
        old = wrap(world, Counter(), broadcast_buffers=value)
    with pytest.warns(FutureWarning, match="broadcast_buffers"):
        both = wrap(world, Counter(), broadcast_buffers=value, forward_sync_buffers=not value)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        new = wrap(world, Counter(), forward_sync_buffers=value)
    for model, broadcast in ((old, value), (both, not value), (new, value)):
        _set(world, model)
        model(share(world, batches(world, 1)[0]))
        assert model.module.steps[0].item() == (101.0 if broadcast else 100.0 * (world.rank + 1) + 1)


@pytest.mark.covers("CD-276", "CD-277")
@pytest.mark.parametrize("returns_future", [True, False], ids=["future", "waits"])
@pytest.mark.parametrize(
    "where", [_BufferCommHookLocation.PRE_FORWARD, _BufferCommHookLocation.POST_FORWARD], ids=str
)
def test_buffer_hook_sums(world: World, where: _BufferCommHookLocation, returns_future: bool) -> None:
    """A buffer hook that all-reduces leaves the sum over ranks, before or after the forward's own change."""
    before = where is _BufferCommHookLocation.PRE_FORWARD
    if before and returns_future:
        pytest.skip("futures of a hook are awaited after the forward only")

    def hook(_state: object, buffers: dict[str, torch.Tensor]) -> list[torch.futures.Future[object]] | None:
        works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers.values()]
        if returns_future:
            return [work.get_future() for work in works]
        for work in works:
            work.wait()
        return None

    together = wrap(world, Counter())
    together._register_buffer_comm_hook(together, hook, where)
    together.module.steps.fill_(world.rank)
    together(share(world, batches(world, 1)[0])).sum().backward()
    ranks = sum(range(world.size))
    assert together.module.steps[0].item() == (ranks + 1 if before else ranks + world.size)


@pytest.mark.covers("CD-278")
def test_buffer_hook_that_broadcasts(world: World) -> None:
    """A hook that calls the default broadcast equals the default behaviour."""
    plain, hooked = wrap(world, Counter()), wrap(world, Counter())

    def hook(model: nn.Module, buffers: dict[str, torch.Tensor]) -> None:
        model._default_broadcast_coalesced(bufs=list(buffers.values()))

    hooked._register_buffer_comm_hook(hooked, hook, _BufferCommHookLocation.PRE_FORWARD)
    for batch in batches(world, 2):
        for model in (plain, hooked):
            _set(world, model)
            model(share(world, batch)).sum().backward()
        torch.testing.assert_close(hooked.module.steps, plain.module.steps, rtol=0, atol=0)
        assert_same_everywhere(world, hooked.module.steps)


@pytest.mark.covers("CD-279")
def test_batch_norm_statistics_follow_the_first_rank(world: World) -> None:
    """Running statistics differ by rank after a forward, and are rank 0's before the next."""
    together = wrap(world, nn.Sequential(linear(), nn.BatchNorm1d(6, dtype=DOUBLE), linear(6, 1)))
    for batch in batches(world, 2, per_rank=4):
        together(share(world, batch)).sum().backward()
    norm = together.module[1]
    assert_different_everywhere(world, norm.running_mean)
    first = exchange(world, norm.running_mean)[0]
    seen: list[torch.Tensor] = []
    norm.register_forward_pre_hook(lambda module, _args: seen.append(module.running_mean.clone()))
    together(share(world, batches(world, 1, per_rank=4)[0]))
    torch.testing.assert_close(seen[0].cpu(), first, rtol=0, atol=0)
