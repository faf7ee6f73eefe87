"""Programs over NCCL in which one stream is made to wait for a call and another one uses its tensors.

They need a GPU for each rank, and pass on most days.
"""

import torch
import torch.distributed as dist
from planted import disagrees

BOTH = (0, 1)


def numbers(world, count=1024):
    return torch.ones(count, device=world.device)


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "mul", "another stream"))
def test_a_side_stream_waits_and_the_default_one_reads(world):
    gradient, side = numbers(world), torch.cuda.Stream()
    work = dist.all_reduce(gradient, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
    gradient * 2


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "mul", "another stream"))
def test_the_default_stream_waits_and_a_side_stream_reads(world):
    gradient, side = numbers(world), torch.cuda.Stream()
    dist.all_reduce(gradient, async_op=True).wait()
    with torch.cuda.stream(side):
        gradient * 2


@disagrees("output-written", size=2, ranks=BOTH, says=("all_reduce", "zero_", "another stream"))
def test_a_side_stream_zeroes_what_the_default_one_reduces(world):
    gradient, side = numbers(world), torch.cuda.Stream()
    dist.all_reduce(gradient)
    with torch.cuda.stream(side):
        gradient.zero_()


@disagrees("input-written", size=2, ranks=BOTH, says=("all_gather", "fill_", "another stream"))
def test_a_side_stream_fills_what_is_being_gathered(world):
    shard, side = numbers(world), torch.cuda.Stream()
    whole = torch.zeros(2048, device=world.device)
    torch.cuda.synchronize()
    dist.all_gather_into_tensor(whole, shard, async_op=True).wait()
    with torch.cuda.stream(side):
        shard.fill_(2)


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "mul"))
def test_an_event_that_came_before_the_wait_orders_nothing(world):
    gradient, side, early = numbers(world), torch.cuda.Stream(), torch.cuda.Event()
    work = dist.all_reduce(gradient, async_op=True)
    early.record()
    work.wait()
    side.wait_event(early)
    with torch.cuda.stream(side):
        gradient * 2


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "mul"))
def test_nobody_waits_before_the_default_stream_reads(world):
    gradient = numbers(world)
    work = dist.all_reduce(gradient, async_op=True)
    gradient * 2
    work.wait()
