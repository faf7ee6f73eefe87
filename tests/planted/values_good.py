"""Programs whose ranks have other numbers, as they should, or do not have them for long: nothing may be found."""

import torch
import torch.distributed as dist
from planted import fine
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from values import average, data_of, gradients, layers, seeded, sgd


def train(model, optimizer, world, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(data_of(world)).pow(2).sum().backward()
        optimizer.step()


@fine("wrapped", size=2)
def test_trains_a_wrapped_model(world):
    model = DistributedDataParallel(layers())
    train(model, sgd(model), world)


@fine("wrapped", size=2)
def test_batch_norm_with_other_statistics_while_it_trains(world):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    train(model, sgd(model), world)
    model.eval()
    model(torch.ones(2, 4))


@fine("wrapped", size=2)
def test_accumulates_without_reduction_and_reduces_in_the_end(world):
    model = DistributedDataParallel(layers())
    optimizer = sgd(model)
    with model.no_sync():
        model(data_of(world)).sum().backward()
    model(data_of(world)).sum().backward()
    optimizer.step()


@fine("wrapped", size=2)
def test_a_frozen_layer(world):
    inner = layers()
    inner[0].requires_grad_(False)
    model = DistributedDataParallel(inner)
    train(model, sgd(model), world)


@fine("wrapped", size=2)
def test_ranks_with_batches_of_other_sizes(world):
    model = DistributedDataParallel(layers())
    optimizer = sgd(model)
    model(data_of(world, rows=2 + world.rank)).sum().backward()
    optimizer.step()


@fine("wrapped", size=2)
def test_each_rank_owns_a_part_of_the_optimizer(world):
    model = DistributedDataParallel(layers())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1), world)


@fine("by hand", size=2)
def test_averages_by_hand(world):
    model = seeded(1)
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(data_of(world)).sum().backward()
        average(gradients(model))
        optimizer.step()


@fine("by hand", size=2)
def test_averages_a_bucket_by_hand(world):
    model = seeded(1)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    bucket = torch.cat([gradient.flatten() for gradient in gradients(model)])
    work = dist.all_reduce(bucket, async_op=True)
    work.wait()
    at = 0
    for gradient in gradients(model):
        gradient.copy_(bucket[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()
    optimizer.step()


@fine("apart", size=2)
def test_models_that_nobody_keeps_together(world):
    model = seeded(world.rank)
    train(model, sgd(model), world)


@fine("apart", size=2)
def test_models_of_one_seed_that_learn_apart_and_report_their_loss(world):
    model = seeded(1)
    optimizer = sgd(model)
    for _ in range(2):
        loss = model(data_of(world)).sum()
        loss.backward()
        dist.all_reduce(loss.detach())
        optimizer.step()


@fine("apart", size=2)
def test_each_rank_has_the_columns_of_one_layer(world):
    columns, norm = seeded(world.rank)[0], nn.LayerNorm(4)
    optimizer = torch.optim.SGD([*columns.parameters(), *norm.parameters()], lr=0.1)
    columns(norm(torch.randn(8, 4, generator=torch.Generator().manual_seed(1)))).pow(2).sum().backward()
    average(gradients(norm))
    optimizer.step()


@fine("apart", size=2)
def test_averages_parameters_now_and_then(world):
    model = seeded(1)
    optimizer = sgd(model)
    for step in range(4):
        model(data_of(world)).sum().backward()
        optimizer.step()
        if step % 2:
            average(parameter.detach() for parameter in model.parameters())


@fine("finite", size=2)
def test_a_mask_of_infinity(world):
    class Masked(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.ones_like(x).triu(1).bool(), float("-inf")).softmax(-1)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), Masked()))
    train(model, sgd(model), world)


@fine("finite", size=2)
def test_the_least_of_nothing_is_infinity(world):
    dist.all_reduce(torch.full((1,), float("inf")), dist.ReduceOp.MIN)


@fine("buffers", size=2)
def test_gathers_what_each_rank_has(world):
    slots = [torch.zeros(4) for _ in range(world.size)]
    dist.all_gather(slots, torch.full((4,), float(world.rank)))
    dist.broadcast(slots[0] if world.is_first else torch.zeros(4), 0)
    out = torch.zeros(2)
    dist.reduce_scatter_tensor(out, torch.arange(4.0) + world.rank)
