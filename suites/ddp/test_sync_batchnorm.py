"""SyncBatchNorm: statistics over all ranks' inputs, which on a GPU equals batch norm on the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from disttest.testing.world import World

from ..replicas import assert_same_everywhere
from .training import assert_gradients_equal, assert_parameters_equal, descend, parameters, share, twin, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


def _model(channels: int = 4, *, affine: bool = True, dimension: int = 1) -> nn.Module:
    norm = getattr(nn, f"BatchNorm{dimension}d")
    return nn.Sequential(nn.Linear(8, 8), norm(channels, affine=affine), nn.Linear(8, 2))


def _synced(model: nn.Module, group: object = None) -> nn.Module:
    return nn.SyncBatchNorm.convert_sync_batchnorm(model, group)


@pytest.mark.covers("CD-217")
def test_conversion_hands_on_the_group(world: World) -> None:
    """Converting replaces nested batch norms, keeps their values, and gives them the group."""
    group = dist.new_group()
    inner = nn.Sequential(nn.BatchNorm1d(3), nn.ModuleDict({"deep": nn.BatchNorm2d(2)}))
    inner[0].running_mean.fill_(5.0)
    model = _synced(nn.Sequential(nn.Linear(3, 3), inner), group)
    norms = [module for module in model.modules() if isinstance(module, nn.SyncBatchNorm)]
    assert len(norms) == 2
    assert all(norm.process_group is group for norm in norms)
    assert norms[0].running_mean.tolist() == [5.0] * 3
    assert not [module for module in model.modules() if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d)]


@pytest.mark.covers("CD-207")
def test_cpu_is_refused(world: World) -> None:
    """On the CPU a converted model cannot be wrapped, and the error says why."""
    if world.device.type != "cpu":
        pytest.skip("this device supports it")
    with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
        wrap(world, _synced(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))))


@pytest.mark.needs("cuda_tensors")
@pytest.mark.covers("CD-215")
def test_logged(world: World) -> None:
    """The logging data says whether the model has synchronised norms."""
    plain, synced = wrap(world, _model()), wrap(world, _synced(_model()))
    assert not plain._get_ddp_logging_data()["has_sync_bn"]
    assert synced._get_ddp_logging_data()["has_sync_bn"]


@pytest.mark.needs("cuda_tensors")
@pytest.mark.covers("CD-208", "CD-209", "CD-210", "CD-211")
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize(("per_rank", "rows"), [(2, 4), (1, 4), (3, 1)], ids=["batch", "single", "flat"])
def test_equals_batch_norm_on_the_whole_batch(world: World, per_rank: int, rows: int, affine: bool) -> None:
    """Training with SyncBatchNorm under DDP equals batch norm on one process, two-dimensional input included."""
    if per_rank * rows == 1 and world.size == 1:
        pytest.skip("batch norm needs more than one value per channel")
    model = _model(4 if rows > 1 else 8, affine=affine)
    alone, together = twin(world, model), wrap(world, _synced(model))
    shape = (world.size * per_rank, *([rows] if rows > 1 else []), 8)
    for _ in range(4):
        batch = torch.randn(shape).to(world.device)
        alone(batch).square().mean().backward()
        together(share(world, batch)).square().mean().backward()
        for name, gradient in ((n, p.grad) for n, p in together.module.named_parameters()):
            torch.testing.assert_close(
                gradient, dict(alone.named_parameters())[name].grad, rtol=1e-3, atol=1e-4
            )
        descend(alone, together)
    torch.testing.assert_close(together.module[1].running_mean, alone[1].running_mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(together.module[1].running_var, alone[1].running_var, rtol=1e-3, atol=1e-4)


@pytest.mark.needs("cuda_tensors")
@pytest.mark.covers("CD-207")
@pytest.mark.parametrize(
    ("dimension", "layout"), [(2, torch.channels_last), (3, torch.channels_last_3d)], ids=["2d", "3d"]
)
def test_memory_format(world: World, dimension: int, layout: torch.memory_format) -> None:
    """The output keeps the memory format of the input."""
    together = wrap(world, _synced(getattr(nn, f"BatchNorm{dimension}d")(4)))
    x = torch.randn(2, 4, *[3] * dimension).to(world.device).to(memory_format=layout)
    out = together(x)
    assert out.is_contiguous(memory_format=layout)
    out.sum().backward()


@pytest.mark.needs("cuda_tensors")
@pytest.mark.covers("CD-212", "CD-213")
def test_ranks_with_inputs_of_different_size(world: World) -> None:
    """Each rank has an input of a different size; statistics are those of all values together."""
    norm = nn.SyncBatchNorm(2, momentum=0.99).to(world.device)
    together = wrap(world, norm)
    inputs = [torch.randn(rank + 2, 2, 10 * (rank + 1)) * (rank + 1) for rank in range(world.size)]
    for _ in range(20):
        together(inputs[world.rank].to(world.device)).sum().backward()
    values = torch.cat([x.transpose(0, 1).flatten(1) for x in inputs], dim=1)
    torch.testing.assert_close(norm.running_mean.cpu(), values.mean(dim=1), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.running_var.cpu(), values.var(dim=1), rtol=1e-3, atol=1e-3)
    assert_same_everywhere(world, [norm.running_mean, norm.running_var])


@pytest.mark.needs("cuda_tensors")
@pytest.mark.covers("CD-214")
def test_half(world: World) -> None:
    """A half-precision model keeps half-precision output and gradients."""
    together = wrap(world, _synced(_model()).half())
    out = together(torch.randn(3, 4, 8, dtype=torch.float16, device=world.device))
    assert out.dtype == torch.float16
    out.float().sum().backward()
    assert {p.grad.dtype for p in together.parameters()} == {torch.float16}


@pytest.mark.needs("cuda_tensors")
@pytest.mark.covers("CD-216", "CD-231")
def test_eval_exchanges_nothing(world: World) -> None:
    """Statistics are gathered in training and not in eval mode."""
    together = wrap(world, _synced(_model()))
    x = torch.randn(3, 4, 8, device=world.device)
    for training in (True, False):
        together.train(training)
        with torch.autograd.profiler.profile() as profiler:
            together(x)
        gathered = [
            e.name for e in profiler.function_events if "all_gather" in e.name or "allgather" in e.name
        ]
        assert bool(gathered) == (training and world.size > 1)


@pytest.mark.needs("cuda_tensors")
@pytest.mark.covers("CD-208")
def test_two_models_agree(world: World) -> None:
    """Two wrapped copies of one converted model train alike."""
    model = _synced(_model())
    pair = [wrap(world, twin(world, model)) for _ in range(2)]
    for _ in range(3):
        batch = torch.randn(world.size * 2, 4, 8).to(world.device)
        for each in pair:
            each(share(world, batch)).square().mean().backward()
        assert_gradients_equal(*pair)
        descend(*pair)
    assert_parameters_equal(*pair)
    assert_same_everywhere(world, parameters(pair[0]))
