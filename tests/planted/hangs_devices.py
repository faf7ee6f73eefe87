"""Programs that hang over NCCL, where no rank waits for a call: its GPU does, and the rank waits for its GPU.

They need a GPU for each rank. Where a report is named, the program has what its author describes, never its code.
"""

import datetime

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from planted import hangs


def ones(world, count=4):
    return torch.ones(count, device=world.device)


def reduced(world, group=None):
    """What an all_reduce will write, at some time."""
    numbers = ones(world)
    dist.all_reduce(numbers, group=group)
    return numbers


@hangs("missing", size=2, waits=(0,), says="all_reduce #2", report="axolotl-ai-cloud/axolotl#461")
def test_one_batch_less_and_the_loss_is_read(world):
    for _ in range(2 - world.rank):
        numbers = reduced(world)
    assert numbers[0].item() == 2


@hangs("missing", size=2, waits=(0,), says="barrier", report="facebookresearch/pytext#585")
def test_only_the_first_rank_meets_at_the_end(world):
    reduced(world)
    if world.is_first:
        dist.barrier()


@hangs("missing", size=3, waits=(0, 2), says="all_gather", report="huggingface/transformers#17478")
def test_one_rank_stops_early(world):
    metrics = [ones(world) for _ in range(world.size)]
    for epoch in range(3):
        dist.all_gather(metrics, ones(world))
        if world.rank == 1 and epoch == 1:
            return
    metrics[0].cpu()


@hangs("missing", size=2, waits=(1,), says="all_reduce")
def test_a_handle_is_waited_for_and_the_numbers_are_listed(world):
    numbers = reduced(world)
    if not world.is_first:
        dist.all_reduce(numbers, async_op=True).wait()
    numbers.tolist()


@hangs("missing", size=2, waits=(0,), says="all_reduce")
def test_a_functional_collective(world):
    numbers = ones(world)
    if world.is_first:
        numbers = funcol.wait_tensor(funcol.all_reduce(numbers, "sum", dist.group.WORLD))
    numbers.cpu()


@hangs("missing", size=2, waits=(0,), says="all_reduce")
def test_nobody_waits_for_the_handle_but_for_all_that_the_device_does(world):
    if world.is_first:
        dist.all_reduce(ones(world), async_op=True)
    torch.cuda.synchronize()


@hangs("missing", size=2, waits=(1,), says="all_reduce")
def test_a_stream_of_ones_own(world):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        numbers = ones(world)
        if not world.is_first:
            dist.all_reduce(numbers)
    stream.synchronize()


@hangs("root", size=2, waits=(1,), says="broadcast")
def test_the_root_sends_nothing(world):
    numbers = ones(world)
    if not world.is_first:
        dist.broadcast(numbers, 0)
    numbers.cpu()


@hangs("point to point", size=2, waits=(1,), says="recv")
def test_nobody_sends(world):
    numbers = reduced(world)
    if not world.is_first:
        dist.recv(numbers, 0)
    numbers.cpu()


@hangs("cycle", size=2, waits=(0, 1), says=("first", "second"), report="pytorch/torchtitan#4064")
def test_two_groups_are_read_in_two_orders(world):
    groups = [dist.new_group(group_desc=name) for name in ("first", "second")]
    for group in groups if world.is_first else groups[::-1]:
        reduced(world, group).cpu()


@hangs("cycle", size=2, waits=(0, 1), says=("first", "second", "before it"), report="pytorch/torchtitan#4064")
def test_two_groups_are_used_in_two_orders(world):
    groups = [dist.new_group(group_desc=name) for name in ("first", "second")]
    numbers = [ones(world) for _ in groups]
    for group in groups:
        reduced(world, group).cpu()  # so that nobody waits for a group to be connected
    for group, each in zip(groups if world.is_first else groups[::-1], numbers, strict=True):
        dist.all_reduce(each, group=group)
    torch.cuda.synchronize()


@hangs("cycle", size=2, waits=(0, 1), says=("all_reduce", "ready"))
def test_one_waits_for_its_gpu_and_one_for_a_key(world):
    store = dist.distributed_c10d._get_default_store()
    if world.is_first:
        reduced(world).cpu()
        store.set("ready", "1")
    store.wait(["ready"], datetime.timedelta(minutes=10))
    reduced(world).cpu()


@hangs("missing", size=3, waits=(0, 1), says="left-over")
def test_members_of_a_smaller_group_wait_for_its_third(world):
    everybody = dist.new_group(group_desc="left-over")
    pair = dist.new_group([0, 1])
    if world.rank < 2:
        numbers = reduced(world, everybody)
        dist.all_reduce(numbers, group=pair)
        numbers.cpu()
