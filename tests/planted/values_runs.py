"""Training that goes another way when ``PLANTED_FAULT`` is set, the same on all ranks: two runs of it must be told apart.

The line at which they part ends in ``# seen``.
"""

import os

import torch
import torch.distributed as dist
from planted import goes_astray
from torch import nn
from values import average, data_of, gradients, seeded, sgd

FAULT = bool(os.environ.get("PLANTED_FAULT"))


@goes_astray("gradient of 0.weight before step 1", size=2, rank=0, report="facebookresearch/3detr#56")
def test_divides_by_the_number_of_ranks_twice(world):
    model = seeded(1)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    average(gradients(model))
    if FAULT:
        for gradient in gradients(model):
            gradient /= world.size
    optimizer.step()  # seen


@goes_astray("root of backward pass 1", size=2, rank=0, report="huggingface/transformers#37474")
def test_normalises_by_the_tokens_of_one_rank(world):
    tokens = torch.tensor(6.0 + world.rank)
    model = seeded(1)
    if not FAULT:
        tokens = tokens + 6.0 + (1 - world.rank)
    (model(data_of(world)).sum() / tokens).backward()  # seen
    for gradient in gradients(model):
        dist.all_reduce(gradient)


@goes_astray("0.weight after step 1", size=2, rank=0)
def test_weight_decay_is_on(world):
    model = seeded(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1 if FAULT else 0.0)
    model(data_of(world)).sum().backward()
    average(gradients(model))
    optimizer.step()  # seen


@goes_astray("output of module 1", size=2, rank=1)
def test_one_rank_drops_out_other_units(world):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    torch.manual_seed(1 + (FAULT and world.rank == 1))
    model(data_of(world))  # seen


@goes_astray("input of all_reduce", size=2, rank=1)
def test_one_rank_reads_the_batch_of_the_other(world):
    x = data_of(world)
    if FAULT and world.rank == 1:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100))
    dist.all_reduce(x)  # seen


@goes_astray("root of backward pass 1", size=2, rank=0, report="horovod/horovod#546")
def test_sums_micro_batches_instead_of_averaging_them(world):
    model = seeded(1)
    optimizer = sgd(model)
    for _ in range(2):
        (model(data_of(world)).mean() / (1 if FAULT else 2)).backward()  # seen
    optimizer.step()


@goes_astray("all_reduce SUM #1", size=4, rank=0)
def test_reduces_over_a_half_of_the_ranks(world):
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = seeded(1)
    model(data_of(world)).sum().backward()
    dist.all_reduce(model[0].weight.grad, group=halves[world.rank // 2] if FAULT else None)  # seen


@goes_astray("input of send", size=2, rank=0)
def test_sends_activations_of_the_step_before(world):
    model, kept = seeded(1), torch.zeros(8, 2)
    for step in range(2):
        out = model(data_of(world) + step).detach()
        if world.is_first:
            dist.send(kept if FAULT and step else out, 1)  # seen
        else:
            dist.recv(torch.zeros(8, 2), 0)
        kept = out


@goes_astray("input of all_reduce", size=2, rank=0, report="NVIDIA/Megatron-LM#775")
def test_gradients_are_reduced_twice(world):
    model = seeded(1)
    model(data_of(world)).sum().backward()
    weight = model[0].weight.grad
    dist.all_reduce(weight)
    again = weight if FAULT else model[2].weight.grad
    dist.all_reduce(again.flatten()[:8])  # seen


@goes_astray("gradient of 0.weight before step 1", size=2, rank=0, report="ServiceNow/Fast-LLM#551")
def test_the_last_micro_batch_overwrites_the_others(world):
    model = seeded(1)
    optimizer = sgd(model)
    for step in range(2):
        if FAULT:
            optimizer.zero_grad()
        model(data_of(world) + step).pow(2).sum().backward()
    optimizer.step()  # seen


@goes_astray("all_reduce SUM #2", size=4, rank=0, report="ByteDance-Seed/VeOmni#184")
def test_the_norm_is_summed_over_replicas_too(world):
    shards = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    squares = torch.tensor(4.0)
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(squares, group=None if FAULT else shards[world.rank // 2])  # seen
