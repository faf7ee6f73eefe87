"""Programs whose ranks have other numbers, as they should, or do not have them for long: nothing may be found."""

import torch
import torch.distributed as dist
from planted import fine
from sharded import (
    WIDTH,
    Copy,
    Gather,
    SequenceParallel,
    Sum,
    TensorParallel,
    Travel,
    linear,
    reduce_norms,
    seeded_alike,
    seeded_apart,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel import (
    SequenceParallel as SequenceParallelStyle,
)
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


# --- parameters that start as zeros and ones


def tokens(world, rows=4):
    """The same on all ranks."""
    del world
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(7))


def steps(model, x, prepare=lambda: None, optimizer=None, count=2):
    optimizer = optimizer or sgd(model)
    for _ in range(count):
        optimizer.zero_grad()
        model(x).pow(3).sum().backward()
        prepare()
        optimizer.step()


@fine("sharded", size=2)
def test_columns_and_rows_with_biases_of_zeros(world):
    seeded_apart(world)
    model = TensorParallel()
    steps(model, tokens(world))


@fine("sharded", size=2)
def test_norms_of_a_part_of_the_tokens(world):
    seeded_apart(world)
    model = SequenceParallel()
    steps(model, data_of(world, rows=4), lambda: reduce_norms(model))


@fine("sharded", size=2)
def test_a_norm_of_each_ranks_own_columns(world):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.column = linear(WIDTH, WIDTH)
            self.own_norm = nn.LayerNorm(WIDTH)
            self.row = linear(WIDTH, WIDTH, bias=False)

        def forward(self, x):
            inside = self.own_norm(self.column(Copy.apply(self.norm(x))))
            return Sum.apply(self.row(inside.relu()))

    seeded_apart(world)
    steps(Model(), tokens(world))


@fine("sharded", size=2)
def test_columns_that_are_normed_before_they_are_gathered(world):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.column, self.own_norm = linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
            self.head = linear(world.size * WIDTH, WIDTH)

        def forward(self, x):
            parts = Gather.apply(self.own_norm(self.column(x))).chunk(world.size)
            return self.head(torch.cat(parts, dim=-1))

    seeded_apart(world)
    steps(Model(), tokens(world))


@fine("sharded", size=2)
def test_shards_of_one_seed_with_biases_of_zeros(world):
    seeded_alike()
    model = TensorParallel()
    with torch.no_grad():
        model.column.weight.mul_(1 + world.rank)
    steps(model, tokens(world))


@fine("sharded", size=2)
def test_experts_that_each_rank_has_of_its_own(world):
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            seeded_alike()
            self.router = nn.Linear(WIDTH, world.size)
            seeded_apart(world)
            self.expert = nn.Sequential(
                nn.LayerNorm(WIDTH), linear(WIDTH, WIDTH), nn.ReLU(), linear(WIDTH, WIDTH)
            )

        def forward(self, x):
            share = self.router(x).softmax(-1)[:, world.rank, None]
            return Sum.apply(share * self.expert(x))

    model = Experts()
    steps(model, tokens(world), lambda: average(gradients(model.router)))


@fine("sharded", size=2)
def test_tokens_that_travel_to_experts(world):
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            seeded_alike()
            self.norm = nn.LayerNorm(WIDTH)
            seeded_apart(world)
            self.expert_norm, self.expert = nn.LayerNorm(WIDTH), linear(WIDTH, WIDTH)

        def forward(self, x):
            return Travel.apply(self.expert(self.expert_norm(Travel.apply(self.norm(x)))))

    model = Experts()
    steps(model, data_of(world, rows=4), lambda: average(gradients(model.norm)))


@fine("sharded", size=2)
def test_stages_of_one_shape(world):
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.layer = nn.LayerNorm(WIDTH), linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.layer(self.norm(x)).relu()

    seeded_apart(world)
    stage = Stage()
    optimizer = sgd(stage)
    for _ in range(2):
        optimizer.zero_grad()
        if world.is_first:
            out = stage(tokens(world))
            dist.send(out.detach(), 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            x = torch.empty(4, WIDTH)
            dist.recv(x, 0)
            x.requires_grad_()
            stage(x).pow(3).sum().backward()
            dist.send(x.grad, 0)
        optimizer.step()


@fine("sharded", size=2)
def test_stages_of_one_shape_in_pairs_of_replicas(world):
    seeded_apart(world)
    stage = nn.Sequential(nn.LayerNorm(WIDTH), linear(WIDTH, WIDTH))
    loss = torch.zeros(1)
    steps(stage, data_of(world, rows=4), lambda: dist.all_reduce(loss))


@fine("sharded", size=2)
def test_parameters_in_shards_of_fsdp(world):
    model = nn.Sequential(nn.LayerNorm(WIDTH), linear(WIDTH, 8), nn.LayerNorm(8))
    fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
    steps(model, data_of(world))


@fine("optimizer", size=2)
def test_each_rank_steps_some_parameters_and_sends_them(world):
    model = seeded(1)
    parameters = list(model.parameters())
    mine = [each for number, each in enumerate(parameters) if number % world.size == world.rank]

    def share():
        average(gradients(model))

    optimizer = torch.optim.Adam(mine, lr=0.1)
    for _ in range(2):
        model.zero_grad()
        model(data_of(world)).sum().backward()
        share()
        optimizer.step()
        for number, parameter in enumerate(parameters):
            dist.broadcast(parameter.detach(), number % world.size)
    model(data_of(world))


@fine("optimizer", size=2)
def test_each_rank_steps_a_piece_of_all_parameters(world):
    model = nn.Sequential(nn.LayerNorm(WIDTH), seeded(1)[0])
    parameters = list(model.parameters())
    flat = nn.utils.parameters_to_vector(parameters).detach()
    size = -(-flat.numel() // world.size)
    flat = nn.functional.pad(flat, (0, size * world.size - flat.numel()))
    piece = nn.Parameter(flat[world.rank * size :][:size].clone())
    optimizer = torch.optim.Adam([piece], lr=0.1)
    for _ in range(2):
        model.zero_grad()
        model(data_of(world)).sum().backward()
        gradient = torch.cat([each.grad.flatten() for each in parameters])
        gradient = nn.functional.pad(gradient, (0, flat.numel() - gradient.numel()))
        piece.grad = torch.empty(size)
        dist.reduce_scatter_tensor(piece.grad, gradient)
        optimizer.step()
        dist.all_gather_into_tensor(flat, piece.detach())
        nn.utils.vector_to_parameters(flat[: sum(each.numel() for each in parameters)], parameters)


@fine("optimizer", size=2)
def test_tensors_without_a_model_of_which_each_rank_steps_its_own(world):
    weights = [
        torch.randn(4, 4, generator=torch.Generator().manual_seed(n), requires_grad=True) for n in (1, 2)
    ]
    optimizer = torch.optim.SGD([weights[world.rank]], lr=0.1)
    (data_of(world) @ weights[0] @ weights[1]).sum().backward()
    average(weight.grad for weight in weights)
    optimizer.step()
    for number, weight in enumerate(weights):
        dist.broadcast(weight.detach(), number)


@fine("sharded", size=2)
def test_a_head_of_zeros_of_which_each_rank_has_columns(world):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = seeded(1)[0], linear(8, WIDTH)
            nn.init.zeros_(self.head.weight)

        def forward(self, x):
            return Gather.apply(self.head(self.body(x)))

    model = Model()
    weight = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(3))
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        (model(tokens(world)) * weight).sum().backward()
        average(gradients(model.body))
        optimizer.step()


@fine("sharded", size=2)
def test_shards_that_all_ranks_make_from_one_seed(world):
    model = nn.Sequential(TensorParallel(), TensorParallel())
    x = tokens(world)
    for block in model:
        block.row.register_forward_pre_hook(lambda _, args: (args[0] * (1 + world.rank),))
    steps(model, x)


@fine("sharded", size=4)
def test_parts_of_the_tokens_in_replicas(world):
    pairs = [dist.new_group(ranks) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))]
    of_tokens, of_replicas = pairs[world.rank // 2], pairs[2 + world.rank % 2]
    torch.manual_seed(10 + world.rank % 2)
    model = nn.Sequential(SequenceParallel(of_tokens), SequenceParallel(of_tokens))

    def reduce():
        for name, parameter in model.named_parameters():
            if "before" in name or "behind" in name:
                dist.all_reduce(parameter.grad, group=of_tokens)
        average(gradients(model), of_replicas)

    steps(model, data_of(world, rows=4), reduce)


@fine("sharded", size=2)
def test_experts_of_two_layers_with_norms_of_their_own(world):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            seeded_alike()
            self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, world.size)
            seeded_apart(world)
            self.experts = nn.ModuleList([nn.Sequential(nn.LayerNorm(WIDTH), linear(WIDTH, WIDTH))])

        def forward(self, x):
            x = self.norm(x)
            share = self.router(x).softmax(-1)[:, world.rank, None]
            return x + Sum.apply(share * self.experts[0](x))

    model = nn.Sequential(Layer(), Layer())

    def reduce():
        for name, parameter in model.named_parameters():
            if "experts" not in name:
                dist.all_reduce(parameter.grad)

    steps(model, tokens(world), reduce)


@fine("sharded", size=2)
def test_a_norm_of_the_mesh_and_layers_in_shards(world):
    model = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH))
    styles = {
        "0": SequenceParallelStyle(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(output_layouts=Shard(0)),
    }
    parallelize_module(model, init_device_mesh("cpu", (world.size,)), styles)
    steps(model, data_of(world, rows=4))


@fine("sharded", size=2)
def test_experts_of_one_seed_beside_a_large_body(world):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.expert = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
            self.head = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.head(Travel.apply(self.expert(Travel.apply(self.body(x)))))

    model = Model()
    steps(model, data_of(world, rows=4), lambda: average([*gradients(model.body), *gradients(model.head)]))


@fine("sharded", size=2)
def test_experts_of_one_seed_that_see_all_tokens(world):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.expert = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH, bias=False)
            self.head = nn.Linear(WIDTH, 8)

        def forward(self, x):
            return self.head(Sum.apply(self.expert(self.body(x)) * (1 + world.rank)))

    model = Model()
    steps(model, tokens(world), lambda: average([*gradients(model.body), *gradients(model.head)]))


@fine("optimizer", size=2)
def test_each_rank_steps_some_wrapped_parameters_and_sends_them(world):
    model = DistributedDataParallel(layers())
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters[world.rank :: world.size], lr=0.1)
    for _ in range(3):
        model.zero_grad()
        model(data_of(world)).pow(2).sum().backward()
        optimizer.step()
        for number, parameter in enumerate(parameters):
            dist.broadcast(parameter.detach(), number % world.size)


@fine("optimizer", size=2)
def test_two_optimizers_that_step_a_part_of_the_model_each(world):
    model = DistributedDataParallel(layers())
    optimizers = [
        torch.optim.Adam(layer.parameters(), lr=0.1) for layer in (model.module[0], model.module[2])
    ]
    for _ in range(3):
        model.zero_grad()
        model(data_of(world)).pow(2).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


@fine("sharded", size=2)
def test_biases_of_a_part_of_the_tokens(world):
    seeded_apart(world)
    model = nn.Sequential(SequenceParallel(bias=True), SequenceParallel(bias=True))

    def reduce():
        reduce_norms(model)
        for block in model:
            dist.all_reduce(block.row.bias.grad)

    steps(model, data_of(world, rows=4), reduce)


@fine("apart", size=2)
def test_an_adapter_of_each_rank_beside_a_wrapped_model(world):
    model = DistributedDataParallel(layers())
    adapter = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(adapter.weight)
    optimizer = torch.optim.SGD([*model.parameters(), *adapter.parameters()], lr=0.1)
    (model(data_of(world)) + adapter(data_of(world))).pow(2).sum().backward()
    optimizer.step()
