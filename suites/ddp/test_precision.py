"""Mixed precision: autocast around DDP, DDP's own mixed precision, and a loss scaler."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel.distributed import _MixedPrecision

from disttest.testing.world import World

from ..replicas import assert_same_everywhere
from .training import assert_gradients_equal, descend, gradients, ignoring, parameters, twin, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


def _data(world: World, steps: int) -> list[torch.Tensor]:
    return list(torch.randn(steps, world.size, 4, 8).to(world.device))


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


@pytest.mark.covers("CD-190")
def test_autocast_and_scaler(world: World) -> None:
    """With bfloat16 autocast and a ``GradScaler`` gradients are finite, float32, equal on all ranks, near one process's."""
    model, kind = _model(), world.device.type
    alone = twin(world, model)
    pair = [wrap(world, twin(world, model), gradient_as_bucket_view=view) for view in (False, True)]
    scalers = [torch.amp.GradScaler(kind, init_scale=256.0) for _ in pair]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in pair]
    for step, batch in enumerate(_data(world, 10)):
        for each, scaler, optimizer in zip(pair, scalers, optimizers, strict=True):
            optimizer.zero_grad()
            with torch.autocast(kind, dtype=torch.bfloat16):
                loss = each(batch[world.rank]).float().square().mean()
            scaler.scale(loss).backward()
            assert all(g.isfinite().all() and g.dtype == torch.float32 for g in gradients(each).values())
            if step == 0:
                with torch.autocast(kind, dtype=torch.bfloat16):
                    exact = alone(batch.flatten(0, 1)).float().square().mean() * 256
                exact.backward()
                for name, gradient in gradients(each).items():
                    torch.testing.assert_close(gradient, gradients(alone)[name], rtol=0.05, atol=2.0)
                alone.zero_grad()
            scaler.step(optimizer)
            scaler.update()
        assert_gradients_equal(*pair)
    assert_same_everywhere(world, parameters(pair[0]))


@pytest.mark.covers("CD-190")
def test_bfloat16_model(world: World) -> None:
    """A model in bfloat16 keeps bfloat16 gradients, which are the mean over ranks."""
    together = wrap(world, nn.Linear(4, 1, bias=False, dtype=torch.bfloat16))
    together(
        torch.full((1, 4), float(world.rank), dtype=torch.bfloat16, device=world.device)
    ).sum().backward()
    gradient = together.module.weight.grad
    assert gradient.dtype == torch.bfloat16
    assert gradient.tolist() == [[(world.size - 1) / 2] * 4]


@pytest.mark.needs("accelerator_events")
@pytest.mark.covers("CD-191")
def test_ignored_parameters_stay_wide(world: World) -> None:
    """DDP's own mixed precision keeps no narrow copy of what DDP ignores."""
    model = _model()
    model.register_buffer("table", torch.ones(2))
    ignoring(world, model, "0.weight", "table")
    narrow = _MixedPrecision(
        param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16
    )
    wrap(world, model, mixed_precision=narrow)
    for name, parameter in model.named_parameters():
        assert hasattr(parameter, "_mp_param") == hasattr(parameter, "_fp_param") == (name != "0.weight")
        if name != "0.weight":
            assert (parameter._mp_param.dtype, parameter._fp_param.dtype) == (torch.float16, torch.float32)
    assert model.table.dtype == torch.float32


class _Watching(nn.Module):
    """Sees the types that reach its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("offset", torch.ones(8))
        self.seen: set[torch.dtype] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = {x.dtype, self.layer.weight.dtype, self.offset.dtype, self.frozen.dtype}
        return self.layer(x + self.offset) * self.frozen


@pytest.mark.needs("accelerator_events")
@pytest.mark.covers("CD-192", "CD-193", "CD-194", "CD-195")
@pytest.mark.parametrize("to_none", [True, False], ids=["none", "zero"])
@pytest.mark.parametrize("view", [True, False], ids=["view", "copy"])
def test_native_mixed_precision(world: World, view: bool, to_none: bool) -> None:
    """Inside forward all is float16; outside, parameters and gradients are float32 and equal across ranks."""
    narrow = _MixedPrecision(
        param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16
    )
    together = wrap(world, _Watching(), mixed_precision=narrow, gradient_as_bucket_view=view)
    for batch in _data(world, 6):
        together(batch[world.rank]).float().square().mean().backward()
        assert together.module.seen == {torch.float16}
        assert together.module.layer.weight.dtype == torch.float32
        assert together.module.layer.weight.grad.dtype == torch.float32
        assert together.module.frozen.grad is None
        assert_same_everywhere(world, gradients(together))
        with torch.no_grad():
            together.module.layer.weight -= 0.01 * together.module.layer.weight.grad
        together.zero_grad(set_to_none=to_none)
    descend(together)


@pytest.mark.covers("CD-192")
def test_native_mixed_precision_needs_an_accelerator(world: World) -> None:
    """On the CPU, DDP's own mixed precision is an error and no silent full precision."""
    if world.device.type != "cpu":
        pytest.skip("this device supports it")
    narrow = _MixedPrecision(param_dtype=torch.float16)
    with pytest.raises(
        RuntimeError, match="accelerator|events|device|CUDA driver"
    ):  # a build for CUDA asks its driver
        wrap(world, _model(), mixed_precision=narrow)(torch.ones(1, 8)).sum().backward()
