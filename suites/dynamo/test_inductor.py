"""Through Inductor: smoke tests of the paths that ``aot_eager`` leaves out. Slow: code is compiled."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from disttest.testing import World

from . import shim
from .models import Encoder, FakeDDP, Toy, assert_trains_alike, seeded, tokens, toy_input

pytestmark = [
    pytest.mark.world_size(1),
    pytest.mark.backend("gloo"),
    pytest.mark.device("cpu"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(shim.missing_compiler()), reason=shim.missing_compiler() or "-"),
]


@pytest.mark.covers("DY-01", "DY-07")
def test_split_encoder_trains_like_a_whole_one(world: World) -> None:
    """Two steps of an encoder cut by the splitter give the results and gradients of the plain one."""
    fake = FakeDDP(seeded(Encoder), 1)
    assert_trains_alike(seeded(Encoder), torch.compile(fake, backend="inductor"), fake, tokens())


@pytest.mark.covers("DY-19", "DY-22")
@pytest.mark.parametrize("optimize", [True, False])
def test_ddp_gives_what_eager_gives(world: World, optimize: bool) -> None:
    """The output of compiled DDP, with the splitter and without, is the plain model's."""
    model, value = seeded(Toy, 600), toy_input()
    with shim.config(optimize_ddp=optimize):
        compiled = torch.compile(DistributedDataParallel(model, bucket_cap_mb=1), backend="inductor")
        assert_close(compiled(value), model(value))


@pytest.mark.covers("DY-14")
def test_fsdp_gives_what_eager_gives(world: World) -> None:
    """The output of compiled FSDP is the plain model's."""
    model, value = seeded(Toy, 50), toy_input()
    wrapped = FullyShardedDataParallel(copy.deepcopy(model), use_orig_params=True, device_id=world.device)
    assert_close(torch.compile(wrapped, backend="inductor")(value), model(value))


@pytest.mark.covers("DY-23", "DY-24")
@pytest.mark.parametrize("train", [True, False])
def test_convolutions_across_splits(world: World, train: bool) -> None:
    """The layout of tensors between graphs is Inductor's choice, and must not be lost."""
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(64, 64, 1), nn.ReLU())]
    model, value = seeded(lambda: nn.Sequential(*layers)), torch.rand(2, 64, 16, 16)
    compiled = torch.compile(FakeDDP(model, 1), backend="inductor")
    with torch.set_grad_enabled(train):
        assert_close(compiled(value), model(value))


@pytest.mark.covers("DY-51")
def test_dynamic_rows_are_compiled_once(world: World) -> None:
    """Two batch sizes, marked as dynamic, go through one compilation, with the plain model's output."""
    model = seeded(Toy, 50)
    counts = []

    def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        from torch._inductor.compile_fx import compile_fx

        counts.append(1)
        return compile_fx(graph, inputs)

    compiled = torch.compile(FakeDDP(model, 1), backend=counting)
    for rows in (20, 24):
        value = toy_input(rows)
        torch._dynamo.mark_dynamic(value, 0)
        assert_close(compiled(value), model(value))
    assert len(counts) == 1
