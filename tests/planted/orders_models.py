"""Programs over models and tensors whose calls do not fit together, and which pass over gloo all the same.

Where a report is named, the program has what its author describes, never its code.
"""

import torch
import torch.distributed as dist
from planted import disagrees
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel


def trained_with(hook):
    """One step of a replicated model with this communication hook."""
    model = DistributedDataParallel(nn.Linear(4, 4))
    model.register_comm_hook(None, hook)
    model(torch.ones(2, 4)).sum().backward()


def compressing(dtype):
    """A communication hook that sends gradients as another type."""

    def hook(_, bucket):
        small = bucket.buffer().to(dtype)
        future = dist.all_reduce(small, async_op=True).get_future()
        return future.then(lambda done: done.value()[0].to(torch.float32))

    return hook


@disagrees("mismatch", size=2, ranks=(0, 1), says=("all_reduce", "float16", "bfloat16"))
def test_ddp_compresses_in_another_way_on_each_rank(world):
    trained_with(compressing(torch.float16 if world.is_first else torch.bfloat16))


@disagrees("mismatch", size=2, ranks=(0, 1), says=("all_reduce", "SUM", "MAX"))
def test_a_communication_hook_takes_the_largest_gradient_on_one_rank(world):
    op = dist.ReduceOp.SUM if world.is_first else dist.ReduceOp.MAX

    def hook(_, bucket):
        future = dist.all_reduce(bucket.buffer(), op, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    trained_with(hook)


@disagrees("mismatch", size=2, ranks=(0, 1), says=("reduce_scatter", "float16", "bfloat16"))
def test_fsdp_reduces_in_another_precision_on_each_rank(world):
    model = nn.Linear(4, 4)
    dtype = torch.float16 if world.is_first else torch.bfloat16
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)
    fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)), mp_policy=policy)
    model(torch.ones(2, 4)).sum().backward()


@disagrees("mismatch", size=2, ranks=(0, 1), says=("all_reduce", "sum", "max"))
def test_a_partial_tensor_is_reduced_in_two_ways(world):
    mesh = init_device_mesh("cpu", (world.size,))
    partial = Partial("sum" if world.is_first else "max")
    DTensor.from_local(torch.ones(4), mesh, [partial]).redistribute(
        mesh, [Replicate()]
    ).to_local().sum().item()


@disagrees("p2p-order", size=2, ranks=(0, 1), says="all_reduce", report="NVIDIA/Megatron-LM#5240")
def test_a_reduction_crosses_the_messages_of_a_pipeline(world):
    stage = PipelineStage(nn.Linear(4, 4), world.rank, world.size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda output, _: output.sum())
    if world.is_first:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        schedule.step(torch.ones(4, 4))
        work.wait()
    else:
        schedule.step(target=torch.ones(4, 4))
        dist.all_reduce(torch.ones(1))
