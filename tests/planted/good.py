"""Programs in which all calls fit together, however they look: nothing may be found in them."""

import torch
import torch.distributed as dist
from planted import fine
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


def mesh_of(world):
    return init_device_mesh("cpu", (world.size,))


def train(model, *, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def layers():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


@fine("ddp", size=2)
def test_ddp_with_uneven_inputs_and_join(world):
    model = DistributedDataParallel(layers())
    with Join([model]):
        train(model, steps=2 + world.rank)


@fine("ddp", size=2)
def test_ddp_with_accumulated_gradients(world):
    model = DistributedDataParallel(layers(), bucket_cap_mb=0.0001)
    with model.no_sync():
        model(torch.ones(2, 4)).sum().backward()
    train(model)


@fine("fsdp", size=2)
def test_fsdp_of_the_first_kind(world):
    train(FullyShardedDataParallel(layers(), device_id=torch.device("cpu"), use_orig_params=True))


@fine("fsdp", size=2)
def test_fsdp_of_the_second_kind(world):
    model = layers()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh_of(world))
    train(model)


@fine("dtensor", size=2)
def test_tensors_change_their_placement(world):
    mesh = mesh_of(world)
    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    tensor = tensor.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()])
    assert tensor.full_tensor().sum() == 16


@fine("dtensor", size=2)
def test_tensor_parallel_layers(world):
    train(parallelize_module(layers(), mesh_of(world), {"0": ColwiseParallel(), "2": RowwiseParallel()}))


@fine("pipelining", size=2)
def test_a_pipeline(world):
    stage = PipelineStage(nn.Linear(4, 4), world.rank, world.size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda output, _: output.sum())
    if world.is_first:
        schedule.step(torch.ones(8, 4))
    else:
        schedule.step(target=torch.ones(8, 4))


@fine("zero", size=2)
def test_an_optimizer_in_shards(world):
    model = DistributedDataParallel(layers())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@fine("groups", size=4)
def test_halves_work_by_themselves(world):
    lower, upper = (dist.new_group(ranks) for ranks in ([0, 1], [2, 3]))
    for _ in range(2 + world.rank // 2):
        dist.all_reduce(torch.ones(4), group=lower if world.rank < 2 else upper)


@fine("groups", size=4)
def test_rows_and_columns_of_a_mesh(world):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    for name in ("rows", "columns", "rows"):
        dist.all_reduce(torch.ones(4), group=mesh.get_group(name))
    dist.barrier()


@fine("messages", size=4)
def test_a_ring_in_batches(world):
    for _ in range(2):
        sent, received = torch.ones(4), torch.zeros(4)
        calls = [
            dist.P2POp(dist.isend, sent, (world.rank + 1) % world.size),
            dist.P2POp(dist.irecv, received, (world.rank - 1) % world.size),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()


@fine("messages", size=2)
def test_even_ranks_send_first(world):
    steps = [
        lambda: dist.send(torch.ones(4), 1 - world.rank),
        lambda: dist.recv(torch.zeros(4), 1 - world.rank),
    ]
    for step in steps if world.is_first else steps[::-1]:
        step()


@fine("uneven", size=2)
def test_uneven_pieces_are_exchanged(world):
    give, take = ([1, 3], [1, 2]) if world.is_first else ([2, 4], [3, 4])
    dist.all_to_all_single(torch.zeros(sum(take)), torch.ones(sum(give)), take, give)


@fine("objects", size=3)
def test_objects_of_many_sizes(world):
    dist.all_gather_object([None] * world.size, "x" * 10**world.rank)
    dist.broadcast_object_list([{"rank": world.rank}], src=2)
    dist.gather_object("y" * world.rank, [None] * world.size if world.is_first else None, dst=0)
    dist.scatter_object_list([None], ["a", "bb", "ccc"] if world.rank == 1 else None, src=1)


@fine("asynchronous", size=2)
def test_handles_are_awaited_late_and_in_any_order(world):
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(4)]
    works.append(dist.barrier(async_op=True))
    for work in works if world.is_first else works[::-1]:
        work.wait()


@fine("asynchronous", size=2)
def test_one_rank_waits_and_the_other_blocks(world):
    if world.is_first:
        dist.all_reduce(torch.ones(4))
    else:
        dist.all_reduce(torch.ones(4), async_op=True).wait()


@fine("groups", size=2)
def test_each_rank_alone_in_a_group_of_its_own(world):
    own = dist.new_group([world.rank])
    dist.all_reduce(torch.ones(1), group=own)
    dist.all_reduce(torch.ones(1), group=dist.new_group())


@fine("groups", size=4)
def test_groups_that_only_their_members_make(world):
    half = [0, 1] if world.rank < 2 else [2, 3]
    dist.all_reduce(torch.ones(1), group=dist.new_group(half, use_local_synchronization=True))
    if world.is_first:
        dist.new_group([0], use_local_synchronization=True)
    dist.barrier()


@fine("groups", size=4)
def test_subgroups_and_meshes_that_everybody_makes(world):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    own, _ = dist.new_subgroups(2)
    for group in (mesh["tp"].get_group(), own, mesh["dp"].get_group()):
        dist.all_gather_object([None] * 2, world.rank, group=group)


@fine("sizes", size=2)
def test_a_matrix_on_one_rank_is_flat_on_the_other_in_a_message(world):
    if world.is_first:
        dist.send(torch.ones(8), 1)
    else:
        dist.recv(torch.zeros(2, 4), 0)


@fine("store", size=2)
def test_ranks_meet_at_the_store_and_count(world):
    store = dist.distributed_c10d._get_default_store()
    store.add("arrived", 1)
    if world.is_first:
        store.set("settings", "42")
    assert store.get("settings") == b"42"
    dist.all_reduce(torch.tensor(float(store.add("arrived", 0))))


@fine("hooks", size=2)
def test_gradients_are_reduced_by_hooks_as_they_come(world):
    model, works = layers(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda each: works.append(dist.all_reduce(each.grad, async_op=True))
        )
    model(torch.ones(2, 4) * world.rank).sum().backward()
    for work in works:
        work.wait()


@fine("sizes", size=2)
def test_a_rank_without_a_batch_adds_one_zero_to_a_loss(world):
    dist.all_reduce(torch.tensor(3.0) if world.is_first else torch.zeros(1))
