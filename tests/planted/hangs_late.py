"""More programs that hang: written when the proof was, by somebody who had not read how it is made.

Where a report is named, the program has what its author describes, never its code.
"""

import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from planted import hangs
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

UNPROVEN = pytest.mark.timeout(12)
"""What ends at its limit, and not by a proof, which a machine that is busy has time for."""


def store():
    """The store that the ranks have met at."""
    return dist.distributed_c10d._get_default_store()


@hangs("operations", size=2, waits=(0, 1), says=("all_gather", "barrier"), report="pytorch/pytorch#126616")
def test_one_rank_sends_no_token_to_the_second_expert(world):
    experts = [nn.Linear(4, 4) for _ in range(2)]
    for expert in experts:
        fully_shard(expert, mesh=init_device_mesh("cpu", (world.size,)))
    for expert in experts[: 2 - world.rank]:
        expert(torch.ones(2, 4))
    dist.barrier()


@hangs("sends", size=2, waits=(0, 1), says="send", report="pytorch/pytorch#172668")
def test_each_stage_follows_another_schedule(world):
    stage = PipelineStage(nn.Linear(4, 4), world.rank, world.size, torch.device("cpu"))
    kind = ScheduleGPipe if world.is_first else Schedule1F1B
    schedule = kind(stage, n_microbatches=4, loss_fn=lambda output, _: output.sum())
    if world.is_first:
        schedule.step(torch.ones(8, 4))
    else:
        schedule.step(target=torch.ones(8, 4))


@hangs("store", size=2, waits=(0, 1), says="rescue")
@UNPROVEN
def test_a_thread_sets_the_key_with_the_client_that_waits_for_it(world):
    if world.is_first:
        thread = threading.Timer(0.5, lambda: store().set("rescue", ""))
        thread.start()
        store().wait(["rescue"])
    dist.barrier()


@hangs("new-group", size=3, waits=(0, 1, 2), says="group", report="axolotl-ai-cloud/axolotl#3533")
def test_groups_are_made_in_another_order(world):
    for ranks in {0: ([0, 1], [0, 2]), 1: ([1, 2], [0, 1]), 2: ([0, 2], [1, 2])}[world.rank]:
        dist.new_group(ranks, use_local_synchronization=True)


@hangs("constructor", size=2, waits=(0,), says="broadcast")
def test_only_the_first_rank_consolidates_the_optimizer(world):
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    if world.is_first:
        optimizer.consolidate_state_dict(to=0)


@hangs("functional", size=2, waits=(0,), says="all_reduce", report="pytorch/pytorch#126846")
def test_a_compiled_reduction_on_one_rank(world):
    @torch.compile(backend="aot_eager")
    def double(x):
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    if world.is_first:
        double(torch.ones(4)).sum().item()


@hangs("functional", size=2, waits=(1,), says="all_reduce", report="LibreYOLO/libreyolo#594")
def test_a_tensor_parallel_model_is_asked_by_one_rank(world):
    layers = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = parallelize_module(layers, init_device_mesh("cpu", (world.size,)), plan)
    if world.rank == 1:
        model(torch.ones(2, 4)).sum().item()


@hangs("objects", size=3, waits=(1,), says="broadcast")
def test_objects_are_scattered_by_the_source_alone(world):
    if world.rank == 1:
        dist.scatter_object_list([None], ["a", "b", "c"], src=1)


@hangs("objects", size=2, waits=(0,), says="recv")
def test_objects_are_expected_that_nobody_sends(world):
    if world.is_first:
        dist.recv_object_list([None], src=1)


@hangs("receives", size=3, waits=(1, 2), says=("send", "recv"), report="meta-pytorch/torchrec#4472")
def test_one_rank_of_a_ring_listens_to_the_wrong_neighbour(world):
    heard = {0: 2, 1: 0, 2: 0}[world.rank]
    calls = [
        dist.P2POp(dist.isend, torch.ones(4), (world.rank + 1) % 3),
        dist.P2POp(dist.irecv, torch.zeros(4), heard),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()


@hangs("receives", size=3, waits=(0, 1, 2), says="recv")
def test_everybody_hears_whom_nobody_sends(world):
    dist.recv(torch.zeros(4))


@hangs("missing", size=2, waits=(0,), says="all_reduce")
@UNPROVEN
def test_a_thread_reduces_what_the_other_rank_does_not(world):
    if world.is_first:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(4),))
        thread.start()
        thread.join()


@hangs("ddp", size=2, waits=(0,), says="all_reduce")
def test_one_rank_still_accumulates(world):
    model = DistributedDataParallel(nn.Linear(4, 4))
    if world.is_first:
        model(torch.ones(2, 4)).sum().backward()
    else:
        with model.no_sync():
            model(torch.ones(2, 4)).sum().backward()


@hangs("ddp", size=2, waits=(0,), says="all_reduce", report="NovaSky-AI/SkyRL#1370")
def test_a_gradient_hook_reduces_on_one_rank(world):
    x = torch.ones(4, requires_grad=True)
    if world.is_first:
        x.register_hook(lambda gradient: dist.all_reduce(gradient))
    (x * 2).sum().backward()


@hangs("constructor", size=2, waits=(0,), says="all_gather", report="pytorch/pytorch#157781")
def test_only_the_first_rank_asks_for_the_full_state(world):
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
    if world.is_first:
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


@pytest.fixture
def barrier_of_the_last_rank(world):
    yield
    if world.rank == 1:
        dist.barrier()


@hangs("gone", size=2, waits=(1,), says="barrier")
def test_one_rank_meets_nobody_in_its_tear_down(world, barrier_of_the_last_rank):
    dist.barrier()


@hangs("sends", size=3, waits=(0, 1, 2), says=("send", "recv"), report="pytorch/pytorch#109401")
def test_a_message_goes_to_the_wrong_rank(world):
    if world.is_first:
        dist.send(torch.ones(4), 2)
    else:
        dist.recv(torch.zeros(4), world.rank - 1)
