"""Programs that hang in what wraps a model or a tensor, each with what must be said of it.

Where a report is named, the program has what its author describes, never its code.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from planted import hangs
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

# --- DDP


def replicated(model=None, **options):
    return DistributedDataParallel(model or nn.Linear(4, 4), **options)


class TwoHeads(nn.Module):
    """One of two layers, as asked."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x, *, head):
        return self.heads[head](x)


@hangs("ddp", size=2, waits=(0,), says="all_reduce", report="allenai/allennlp#5088")
def test_one_rank_has_no_backward(world):
    model = replicated()
    loss = model(torch.ones(2, 4)).sum()
    if world.is_first:
        loss.backward()


@hangs("ddp", size=2, waits=(0,), says="all_reduce", report="pytorch/pytorch#40566")
def test_one_rank_uses_no_parameter_of_the_model(world):
    model = replicated(TwoHeads(), bucket_cap_mb=0.0001)
    if world.is_first:
        (model(torch.ones(2, 4), head=0).sum() + model.module.heads[1](torch.ones(2, 4)).sum()).backward()
    else:
        model(torch.ones(2, 4), head=0)
        torch.ones(1, requires_grad=True).sum().backward()


@hangs("ddp", size=2, waits=(0, 1), says=("broadcast", "barrier"), report="pytorch/pytorch#54059")
def test_evaluates_on_one_rank_with_buffers_to_share(world):
    model = replicated(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))).eval()
    if world.rank == 0:
        with torch.no_grad():
            model(torch.ones(2, 4))
    dist.barrier()


# --- a constructor alone


@hangs("constructor", size=2, waits=(0,), says="all_gather")
def test_ddp_is_made_on_one_rank(world):
    if world.is_first:
        replicated()


@hangs("constructor", size=2, waits=(0,), says="all_gather", report="pytorch/pytorch#122903")
def test_only_the_first_rank_asks_fsdp_for_its_state(world):
    model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    if world.is_first:
        model.state_dict()


@hangs("constructor", size=2, waits=(0,), says="all_gather", report="pytorch/pytorch#143536")
def test_only_the_first_rank_gathers_the_weights(world):
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
    if world.is_first:
        model.unshard()


# --- functional collectives, DTensor, compiled code


@hangs("functional", size=2, waits=(0,), says="all_reduce", report="huggingface/trl#6172")
def test_a_functional_reduction_on_one_rank(world):
    if world.is_first:
        functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).sum().item()


@hangs("functional", size=2, waits=(0,), says="all_gather", report="areal-project/AReaL#187")
def test_only_the_first_rank_asks_for_the_full_tensor(world):
    mesh = init_device_mesh("cpu", (world.size,))
    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    if world.is_first:
        tensor.full_tensor()


@hangs("functional", size=3, waits=(0,), says="scatter", report="huggingface/transformers#48237")
def test_a_rank_without_rows_does_not_distribute_the_tensor(world):
    mesh = init_device_mesh("cpu", (world.size,))
    if world.rank < 2:
        distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])
