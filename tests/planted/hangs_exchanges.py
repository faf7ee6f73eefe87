"""Programs that hang in groups, messages, stores and pipelines, each with what must be said of it.

Where a report is named, the program follows the situation that its author describes, never its code.
"""

import datetime

import torch
import torch.distributed as dist
from planted import hangs
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def store():
    """The store that the ranks have met at."""
    return dist.distributed_c10d._get_default_store()


def reduce(*, group=None):
    dist.all_reduce(torch.ones(4), group=group)


# --- futures


@hangs("futures", size=2, waits=(0,), says="all_reduce #2")
def test_one_of_two_futures_is_of_a_call_that_the_other_rank_lacks(world):
    """They are waited for together."""
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2 - world.rank)]
    torch.futures.wait_all([work.get_future() for work in works])


@hangs("futures", size=2, waits=(0,), says="all_reduce")
def test_what_follows_a_call_is_waited_for(world):
    """The mean is taken of a sum that never comes."""
    if world.is_first:
        future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
        future.then(lambda done: done.value()[0] / 2).wait()


# --- groups


@hangs("groups", size=3, waits=(0, 1), says="all_reduce")
def test_a_rank_reduces_in_a_group_that_it_is_no_member_of(world):
    """torch ignores the call with a warning, and the others wait in the group of all ranks."""
    pair = dist.new_group([0, 1])
    reduce(group=pair if world.rank == 2 else None)


@hangs("groups", size=4, waits=(0, 1, 2, 3), says=("barrier", "all_reduce"))
def test_two_ranks_take_the_other_dimension_of_the_mesh(world):
    """The pairs of one dimension meet; those of the other one wait for ranks that have gone on."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    reduce(group=mesh["dp" if world.rank % 2 == 0 else "tp"].get_group())
    dist.barrier()


@hangs(
    "groups", size=3, waits=(0, 1, 2), says=("experts", "barrier"), report="NVIDIA-NeMo/Megatron-Bridge#852"
)
def test_a_rank_without_experts_does_not_sum_their_norm(world):
    """Only ranks with parameters of experts call the reduction of their group."""
    experts = dist.new_group([0, 1], group_desc="experts")
    parameters = {0: [1.0], 1: [], 2: []}[world.rank]
    if parameters:
        reduce(group=experts)
    dist.barrier()


@hangs("roots", size=2, waits=(0, 1), says="broadcast", report="meta-pytorch/torchrec#4648")
def test_tables_are_sent_in_the_order_of_a_set(world):
    """Each table comes from its owner, and ranks go through the tables in different orders."""
    owners = {"users": 0, "items": 1}
    for name in sorted(owners, reverse=world.rank == 1):
        dist.broadcast(torch.ones(4), owners[name])


@hangs("monitored", size=2, waits=(0,), says="monitored_barrier")
def test_nobody_comes_to_a_monitored_barrier(world):
    """Its limit is longer than that of the test."""
    if world.is_first:
        dist.monitored_barrier(timeout=datetime.timedelta(hours=1))


@hangs("dtensor", size=4, waits=(0, 1, 2, 3), says=("all_gather", "barrier"))
def test_one_row_of_the_mesh_asks_for_a_tensor_that_columns_have(world):
    """Only the first row asks, and each of its ranks lacks the other rank of its column."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Replicate()])
    if world.rank < 2:
        tensor.full_tensor()
    dist.barrier()


@hangs("dtensor", size=2, waits=(0,), says="all_gather")
def test_one_rank_changes_the_placement_of_a_tensor(world):
    """Over gloo all shards are gathered and cut anew."""
    mesh = init_device_mesh("cpu", (world.size,))
    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    if world.is_first:
        tensor.redistribute(mesh, [Shard(1)]).to_local().sum().item()


# --- messages


@hangs("receives", size=2, waits=(0,), says="recv", report="NVIDIA/nccl#2130")
def test_a_batch_expects_an_answer_that_the_other_batch_lacks(world):
    """Each message of a batch needs its partner in the batch of the peer."""
    calls = [dist.P2POp(dist.isend if world.is_first else dist.irecv, torch.ones(1), 1 - world.rank)]
    if world.is_first:
        calls.append(dist.P2POp(dist.irecv, torch.zeros(1), 1))
    for work in dist.batch_isend_irecv(calls):
        work.wait()


@hangs("receives", size=3, waits=(0,), says="recv")
def test_one_of_two_workers_reports_nothing(world):
    """The first rank takes two results from any rank."""
    if world.is_first:
        for _ in range(2):
            dist.recv(torch.zeros(1))
    elif world.rank == 1:
        dist.send(torch.ones(1), 0)


@hangs("receives", size=2, waits=(1,), says="recv")
def test_a_second_list_of_objects_is_never_sent(world):
    """Lists of objects are messages, too."""
    if world.is_first:
        dist.send_object_list([{"batch": 0}], 1)
    else:
        for _ in range(2):
            dist.recv_object_list([None], 0)


@hangs("receives", size=3, waits=(0, 1, 2), says="recv")
def test_a_token_that_no_rank_begins_with(world):
    """Each rank of the ring takes the token before it gives it."""
    token = torch.zeros(1)
    for _ in range(2):
        dist.recv(token, (world.rank - 1) % world.size)
        dist.send(token, (world.rank + 1) % world.size)


@hangs("sends", size=3, waits=(0, 1), says=("send", "recv"), report="pytorch/PiPPy#969")
def test_a_skip_connection_goes_to_a_stage_that_does_not_know_of_it(world):
    """The first stage waits for all that it sends before it takes a gradient."""
    if world.is_first:
        for work in [dist.isend(torch.ones(4), peer) for peer in (1, 2)]:
            work.wait()
        dist.recv(torch.zeros(4), 1)
    elif world.rank == 1:
        dist.recv(torch.zeros(4), 0)
        dist.send(torch.ones(4), 2)
        dist.recv(torch.zeros(4), 0)
    else:
        dist.recv(torch.zeros(4), 1)


@hangs("pipeline", size=2, waits=(0, 1), says="send")
def test_stages_cut_the_batch_into_other_numbers_of_pieces(world):
    """The first stage has four pieces, the last one expects two."""
    stage = PipelineStage(nn.Linear(4, 4), world.rank, world.size, torch.device("cpu"))
    pieces = 4 if world.is_first else 2
    schedule = ScheduleGPipe(stage, n_microbatches=pieces, loss_fn=lambda output, _: output.sum())
    if world.is_first:
        schedule.step(torch.ones(8, 4))
    else:
        schedule.step(target=torch.ones(4, 4))


# --- stores


@hangs("store", size=2, waits=(1,), says="address")
def test_a_key_is_set_below_another_prefix(world):
    """Both ranks use the same key of two stores."""
    own = dist.PrefixStore(f"epoch{world.rank}", store())
    if world.is_first:
        own.set("address", "here")
    else:
        own.get("address")


@hangs("store", size=2, waits=(1,), says="address")
def test_a_key_is_set_in_the_memory_of_one_process(world):
    """A ``HashStore`` belongs to its process."""
    own = dist.HashStore()
    if world.is_first:
        own.set("address", "here")
    else:
        own.get("address")


@hangs("store", size=3, waits=(0, 1, 2), says="last")
def test_the_last_to_arrive_is_counted_by_another_number(world):
    """A barrier in the store opens when one rank more than there are has come."""
    if store().add("arrived", 1) == world.size + 1:
        store().set("last", "yes")
    store().wait(["last"])
