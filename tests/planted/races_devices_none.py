"""Programs over NCCL whose streams wait for each other in every way that there is. They need a GPU for each rank."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from planted import fine
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def numbers(world, count=1024):
    return torch.ones(count, device=world.device)


@fine("stream", size=2)
def test_the_stream_that_waits_is_the_one_that_reads(world):
    gradient, side = numbers(world), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    work = dist.all_reduce(gradient, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
        gradient * 2


@fine("stream", size=2)
def test_one_stream_waits_for_the_other(world):
    gradient, side = numbers(world), torch.cuda.Stream()
    with torch.cuda.stream(side):
        dist.all_reduce(gradient, async_op=True).wait()
    torch.cuda.current_stream().wait_stream(side)
    gradient * 2


@fine("event", size=2)
def test_an_event_orders_them(world):
    gradient, side, done = numbers(world), torch.cuda.Stream(), torch.cuda.Event()
    dist.all_reduce(gradient)
    done.record()
    side.wait_event(done)
    with torch.cuda.stream(side):
        gradient.zero_()


@fine("host", size=2)
def test_the_host_waits_for_the_stream(world):
    gradient, side = numbers(world), torch.cuda.Stream()
    dist.all_reduce(gradient, async_op=True).wait()
    torch.cuda.current_stream().synchronize()
    with torch.cuda.stream(side):
        gradient * 2


@fine("host", size=2)
def test_the_host_waits_for_the_device(world):
    gradient, side = numbers(world), torch.cuda.Stream()
    with torch.cuda.stream(side):
        work = dist.all_reduce(gradient, async_op=True)
        work.wait()
    torch.cuda.synchronize()
    gradient * 2


@fine("memory", size=2)
def test_memory_that_was_given_back_is_used_by_another_stream(world):
    side = torch.cuda.Stream()
    dist.all_reduce(numbers(world), async_op=True).wait()
    with torch.cuda.stream(side):
        numbers(world) * 2


@fine("several", size=2)
def test_calls_of_a_batch_are_waited_for_together(world):
    first, second = numbers(world), numbers(world)
    with dist._coalescing_manager(async_ops=True) as batch:
        dist.all_reduce(first)
        dist.all_reduce(second)
    batch.wait()
    first * second


@fine("functional", size=2)
def test_a_functional_collective_is_waited_for_where_it_is_used(world):
    assert (functional.all_reduce(numbers(world), "sum", dist.group.WORLD) * 2)[0].item() == 4


@fine("model", size=2)
def test_a_model_trains(world):
    model = DistributedDataParallel(nn.Linear(4, 4).to(world.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=world.device)).sum().backward()
        optimizer.step()


@fine("model", size=2)
def test_a_model_is_sharded(world):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(world.device)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=world.device)).sum().backward()
        optimizer.step()
