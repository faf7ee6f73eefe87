"""More programs whose calls do not fit together, and which pass over gloo all the same: each with what must be found in it.

Where a report is named, the program follows the situation that its author describes, never its code.
"""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from planted import disagrees
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

leaves_calls_open = pytest.mark.fresh_world
"""The calls that it leaves open would meet those of the next test of a warm world."""


def reduce_later(*, group=None):
    return dist.all_reduce(torch.ones(4), group=group, async_op=True)


# --- one collective, another signature on each rank


@disagrees("mismatch", size=2, ranks=(0, 1), says=("broadcast", "float64[2]", "float32[4]"))
def test_fewer_and_larger_numbers_have_as_many_bytes(world):
    """gloo counts bytes."""
    dist.broadcast(torch.ones(2, dtype=torch.float64) if world.is_first else torch.ones(4), 0)


@disagrees("mismatch", size=2, ranks=(0, 1), says=("all_reduce_coalesced", "all_reduce"))
@leaves_calls_open
def test_one_rank_has_flattened_its_bucket(world):
    """The other rank reduces the same elements as a list of tensors."""
    if world.is_first:
        dist.all_reduce_coalesced([torch.ones(4), torch.ones(4)])
    else:
        dist.all_reduce(torch.ones(8))


@disagrees("mismatch", size=2, ranks=(0, 1), says=("all_reduce", "int32", "float32"), report="NVIDIA/apex#18")
def test_ranks_go_through_the_types_of_tensors_in_different_orders(world):
    """There is a bucket for each type, and the types come from a dictionary."""
    for dtype in (torch.float32, torch.int32)[:: 1 if world.is_first else -1]:
        dist.all_reduce(torch.ones(4, dtype=dtype))


@disagrees("mismatch", size=2, ranks=(0, 1), says="all_reduce_coalesced")
def test_a_bucket_has_its_tensors_in_another_order_on_one_rank(world):
    """Elements of one tensor are added to elements of another one."""
    sizes = (2, 4) if world.is_first else (4, 2)
    dist.all_reduce_coalesced([torch.ones(size) for size in sizes])


@disagrees(
    "mismatch",
    size=2,
    ranks=(0, 1),
    says=("all_to_all_single", "[2, 3]", "[6, 1]"),
    report="ByteDance-Seed/VeOmni#979",
)
def test_one_rank_recomputes_two_experts_in_the_other_order(world):
    """The exchange of one expert meets that of the other one, which has as many bytes."""

    def expert(tokens):
        taken = torch.zeros(tokens.shape)
        dist.all_to_all_single(taken, tokens.detach())
        return tokens * taken

    shapes = ((2, 3), (6, 1))
    leaves = [torch.ones(shape, requires_grad=True) for shape in shapes]
    results = [checkpoint(expert, leaf, use_reentrant=False) for leaf in leaves]
    for result in results if world.is_first else results[::-1]:
        result.sum().backward()


@disagrees("mismatch", size=2, ranks=(0, 1), says="all_to_all_single", report="pytorch/pytorch#117486")
@leaves_calls_open
def test_a_functional_exchange_expects_rows_that_are_not_given(world):
    """The sizes that ranks have exchanged before are those of another batch."""
    give, take = ([2, 1], [2, 2]) if world.is_first else ([2, 2], [2, 2])
    functional.all_to_all_single(torch.ones(sum(give)), take, give, dist.group.WORLD).sum().item()


@disagrees("mismatch", size=2, ranks=(0, 1), says=("reduce_scatter", "[2, 3]", "[3, 2]"))
def test_pieces_of_gradients_are_transposed_on_one_rank(world):
    """Each piece has as many elements on both ranks."""
    shape = (2, 3) if world.is_first else (3, 2)
    dist.reduce_scatter(torch.zeros(shape), [torch.ones(shape), torch.ones(shape)])


@disagrees("mismatch", size=2, ranks=(0, 1), says=("scatter", "int32", "float32"))
def test_pieces_of_a_batch_come_as_numbers_of_another_kind(world):
    """The source has indices where the others expect weights."""
    pieces = [torch.ones(3, dtype=torch.int32) for _ in range(2)]
    if world.is_first:
        dist.scatter(torch.zeros(3, dtype=torch.int32), pieces, src=0)
    else:
        dist.scatter(torch.zeros(3), src=0)


@disagrees("mismatch", size=2, ranks=(0, 1), says=("bfloat16", "float16"))
def test_a_stage_expects_another_half_precision(world):
    """A batch of messages, one in each direction."""
    dtype = torch.bfloat16 if world.is_first else torch.float16
    other = 1 - world.rank
    calls = [dist.P2POp(dist.isend, torch.ones(4, dtype=dtype), other)]
    calls.append(dist.P2POp(dist.irecv, torch.zeros(4, dtype=dtype), other))
    for work in dist.batch_isend_irecv(calls):
        work.wait()


# --- one rank issues more than the others


@disagrees("extra", size=3, ranks=(2,), says="barrier")
@leaves_calls_open
def test_one_rank_announces_its_arrival_twice(world):
    """Its second barrier has nobody who waits for it."""
    dist.barrier()
    if world.rank == 2:
        late = dist.barrier(async_op=True)
        assert not late.is_completed()


@disagrees("extra", size=2, ranks=(0,), says="send", report="NVIDIA/nccl#2130")
@leaves_calls_open
def test_a_batch_of_messages_has_one_too_many(world):
    """The last message is prepared for a step that never comes."""
    direction = dist.isend if world.is_first else dist.irecv
    calls = [dist.P2POp(direction, torch.ones(4), 1 - world.rank) for _ in range(3 - world.rank)]
    works = dist.batch_isend_irecv(calls)
    for work in works[:2]:
        work.wait()


# --- groups and messages in other orders


@disagrees("group-order", size=4, ranks=(0, 1, 2, 3), says=("dp", "tp"), report="NVIDIA/nccl#195")
def test_rows_and_columns_of_a_mesh_are_reduced_in_two_orders(world):
    """Each rank is right by itself, and each square of the mesh is a cycle."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    names = ("dp", "tp") if world.rank in (0, 3) else ("tp", "dp")
    for work in [reduce_later(group=mesh[name].get_group()) for name in names]:
        work.wait()


@disagrees("p2p-order", size=2, ranks=(0, 1), says=("send", "broadcast"))
def test_weights_are_announced_before_or_after_the_last_message(world):
    """A rollout is sent while the new weights are broadcast."""
    if world.is_first:
        work = dist.isend(torch.ones(4), 1)
        dist.broadcast(torch.ones(2), 0)
        work.wait()
    else:
        dist.broadcast(torch.zeros(2), 0)
        dist.recv(torch.zeros(4), 0)


@disagrees("p2p-cycle", size=3, ranks=(0, 1, 2), says="send", report="NVIDIA/Megatron-LM#5100")
def test_shapes_are_sent_by_all_ranks_of_a_ring_before_any_receives(world):
    """Each rank sends the length of its sequence, then the sequence."""
    after, before = (world.rank + 1) % 3, (world.rank - 1) % 3
    length = torch.tensor([2 + world.rank])
    work = dist.isend(length, after)
    expected = torch.zeros(1, dtype=torch.long)
    dist.recv(expected, before)
    work.wait()
    work = dist.isend(torch.ones(int(length)), after)
    dist.recv(torch.zeros(int(expected)), before)
    work.wait()


# --- nobody waits


@disagrees("never-waited", size=2, ranks=(0, 1), says="all_reduce", report="OpenNMT/OpenNMT-py#2295")
@leaves_calls_open
def test_a_buffer_is_scaled_though_nobody_waits_for_its_sum(world):
    """The handle is thrown away."""
    buffer = torch.ones(4)
    dist.all_reduce(buffer, async_op=True)
    buffer.div_(world.size)


@disagrees("never-waited", size=2, ranks=(0, 1), says="all_reduce")
@leaves_calls_open
def test_a_handle_is_named_and_never_read(world):
    """Its name is the one for what does not matter."""
    _ = dist.all_reduce(torch.ones(4), async_op=True)


@disagrees("never-waited", size=2, ranks=(0, 1), says="reduce_scatter_tensor")
@leaves_calls_open
def test_a_wrapper_of_a_call_throws_its_handle_away(world):
    """The options of the call are bound before."""
    scatter_later = functools.partial(dist.reduce_scatter_tensor, async_op=True)
    scatter_later(torch.zeros(4), torch.ones(8))


@disagrees("never-waited", size=2, ranks=(0, 1), says="send", report="pytorch/pytorch#152938")
@leaves_calls_open
def test_the_handles_of_a_batch_of_messages_are_discarded(world):
    """The list of handles is what the batch returns."""
    other = 1 - world.rank
    calls = [dist.P2POp(dist.isend, torch.ones(4), other), dist.P2POp(dist.irecv, torch.zeros(4), other)]
    dist.batch_isend_irecv(calls)
