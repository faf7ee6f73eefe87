"""Programs whose calls do not fit together, and which pass over gloo all the same: each with what must be found in it.

Where a report is named, the program has what its author describes, never its code.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from planted import disagrees
from torch.distributed.device_mesh import init_device_mesh

leaves_calls_open = pytest.mark.fresh_world
"""What it leaves would meet the calls of the next test of a warm world."""
MAX, SUM = dist.ReduceOp.MAX, dist.ReduceOp.SUM


def either(world, first, others):
    """One thing on rank 0, another one elsewhere."""
    return first if world.is_first else others


def two_groups():
    """Two groups of everybody."""
    return [dist.new_group(group_desc=name) for name in ("first", "second")]


def one_of_each(calls):
    """Issue these, then wait for all of them."""
    for work in [call() for call in calls]:
        work.wait()


# --- one collective, another signature on each rank


@disagrees(
    "mismatch", size=2, ranks=(0, 1), says=("all_reduce", "SUM", "MAX"), report="pytorch/pytorch#174844"
)
def test_sum_here_and_max_there(world):
    dist.all_reduce(torch.ones(4), either(world, SUM, MAX))


@disagrees("mismatch", size=3, ranks=(2,), says=("all_reduce", "SUM", "MIN"))
def test_one_of_three_takes_the_least(world):
    dist.all_reduce(torch.ones(4), dist.ReduceOp.MIN if world.rank == 2 else SUM)


@disagrees("mismatch", size=2, ranks=(0, 1), says=("reduce", "SUM", "PRODUCT"))
def test_a_reduction_to_one_multiplies_here_and_adds_there(world):
    dist.reduce(torch.ones(4), 0, either(world, dist.ReduceOp.PRODUCT, SUM))


@disagrees(
    "mismatch", size=2, ranks=(0, 1), says=("all_reduce", "int32", "float32"), report="ray-project/ray#49300"
)
def test_counts_in_whole_numbers_on_one_rank(world):
    dist.all_reduce(torch.ones(4, dtype=either(world, torch.float32, torch.int32)))


@disagrees(
    "mismatch",
    size=2,
    ranks=(0, 1),
    says=("all_reduce", "float16", "bfloat16"),
    report="pytorch/pytorch#150248",
)
def test_two_half_precisions(world):
    dist.all_reduce(torch.ones(4, dtype=either(world, torch.float16, torch.bfloat16)))


@disagrees(
    "mismatch", size=2, ranks=(0, 1), says=("broadcast", "int64", "float64"), report="pytorch/pytorch#163839"
)
def test_the_source_sends_numbers_of_another_kind(world):
    dist.broadcast(torch.ones(4, dtype=either(world, torch.int64, torch.float64)), 0)


@disagrees(
    "mismatch", size=2, ranks=(0, 1), says=("all_reduce", "[2, 3]", "[3, 2]"), report="NVIDIA/nccl#1417"
)
def test_a_transposed_gradient(world):
    dist.all_reduce(torch.ones(*either(world, (2, 3), (3, 2))))


@disagrees("mismatch", size=2, ranks=(0, 1), says=("broadcast", "[8]", "[2, 4]"))
def test_the_source_has_flattened_its_weights(world):
    dist.broadcast(torch.ones(*either(world, (8,), (2, 4))), 0)


@disagrees(
    "mismatch", size=2, ranks=(0, 1), says=("all_gather", "[4, 2]", "[2, 4]"), report="pytorch/pytorch#174844"
)
def test_gathers_rows_of_one_and_columns_of_the_other(world):
    shape = either(world, (4, 2), (2, 4))
    dist.all_gather([torch.zeros(shape) for _ in range(world.size)], torch.ones(shape))


@disagrees("mismatch", size=2, ranks=(0, 1), says=("reduce_scatter", "SUM", "MAX"))
def test_scatters_sums_here_and_maxima_there(world):
    dist.reduce_scatter_tensor(torch.zeros(4), torch.ones(8), either(world, SUM, MAX))


@disagrees(
    "mismatch", size=2, ranks=(0, 1), says=("gather", "int64", "float64"), report="pytorch/pytorch#163839"
)
def test_gathers_numbers_of_another_kind(world):
    dtype = either(world, torch.float64, torch.int64)
    slots = [torch.zeros(2, dtype=dtype) for _ in range(2)] if world.is_first else None
    dist.gather(torch.ones(2, dtype=dtype), slots, dst=0)


@disagrees("mismatch", size=2, ranks=(0, 1), says=("scatter", "[6]", "[2, 3]"))
def test_scatters_flat_pieces_into_rows(world):
    pieces = [torch.ones(6) for _ in range(2)] if world.is_first else None
    dist.scatter(torch.zeros(*either(world, (6,), (2, 3))), pieces, src=0)


@disagrees("mismatch", size=4, ranks=(3,), says=("broadcast", "from rank 1"))
def test_one_of_four_believes_in_another_source(world):
    dist.broadcast(torch.ones(4), 1 if world.rank == 3 else 0)


@disagrees("mismatch", size=3, ranks=(2,), says=("reduce", "to rank 1"))
def test_one_of_three_reduces_to_another_rank(world):
    dist.reduce(torch.ones(4), 1 if world.rank == 2 else 0)


@disagrees("mismatch", size=2, ranks=(0, 1), says=("all_reduce", "sum", "max"))
def test_a_functional_reduction_takes_the_most_on_one_rank(world):
    functional.all_reduce(torch.ones(4), either(world, "sum", "max"), dist.group.WORLD).sum().item()


@disagrees("mismatch", size=2, ranks=(0, 1), says=("recv", "int32", "float32"))
def test_receives_numbers_of_another_kind(world):
    if world.is_first:
        dist.send(torch.ones(4, dtype=torch.int32), 1)
    else:
        dist.recv(torch.ones(4), 0)


@disagrees("mismatch", size=2, ranks=(0, 1), says=("recv", "[8]", "[4]"))
def test_receives_less_than_it_has_room_for(world):
    if world.is_first:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.zeros(8), 0)


# --- one rank issues more than the others


@disagrees("extra", size=2, ranks=(1,), says="all_reduce", report="sgl-project/sglang#26923")
@leaves_calls_open
def test_one_rank_reduces_once_more_and_does_not_wait(world):
    dist.all_reduce(torch.ones(4))
    if world.rank == 1:
        dist.all_reduce(torch.ones(4), async_op=True)


@disagrees("extra", size=3, ranks=(0,), says="broadcast")
@leaves_calls_open
def test_the_first_rank_announces_what_nobody_hears(world):
    if world.is_first:
        dist.broadcast(torch.ones(1), 0, async_op=True)


@disagrees("extra", size=2, ranks=(0,), says="send", report="pytorch/pytorch#108378")
@leaves_calls_open
def test_a_message_that_nobody_receives(world):
    if world.is_first:
        dist.isend(torch.ones(4), 1)


@disagrees("extra", size=2, ranks=(1,), says="recv")
@leaves_calls_open
def test_a_receive_that_is_prepared_once_too_often(world):
    if world.is_first:
        dist.send(torch.ones(4), 1)
    else:
        dist.irecv(torch.ones(4), 0).wait()
        dist.irecv(torch.ones(4), 0)


@disagrees("extra", size=2, ranks=(0,), says="all_reduce", report="huggingface/trl#6172")
@leaves_calls_open
def test_a_functional_reduction_whose_result_one_rank_throws_away(world):
    if world.is_first:
        functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)


# --- two groups in opposite orders


@disagrees("group-order", size=2, ranks=(0, 1), says=("first", "second"), report="pytorch/torchtitan#4064")
def test_two_communicators_in_opposite_order(world):
    calls = [lambda g=group: dist.all_reduce(torch.ones(4), group=g, async_op=True) for group in two_groups()]
    one_of_each(either(world, calls, calls[::-1]))


@disagrees("group-order", size=4, ranks=(0, 1, 2, 3), says="all_to_all", report="meta-pytorch/torchrec#4149")
def test_shards_and_replicas_in_different_order(world):
    shard, replicate = two_groups()
    calls = [
        lambda: dist.all_to_all_single(torch.zeros(4), torch.ones(4), group=shard, async_op=True),
        lambda: dist.all_reduce(torch.ones(4), group=replicate, async_op=True),
    ]
    one_of_each(calls if world.rank < 2 else calls[::-1])


@disagrees("group-order", size=3, ranks=(0, 1), says="pair", report="Lightning-AI/pytorch-lightning#15195")
def test_a_pair_and_the_world_in_opposite_order(world):
    pair = dist.new_group([0, 1], group_desc="pair")
    calls = [lambda: dist.all_reduce(torch.ones(4), async_op=True)]
    if world.rank < 2:
        calls.append(lambda: dist.all_reduce(torch.ones(2), group=pair, async_op=True))
    one_of_each(calls if world.rank == 0 else calls[::-1])


@disagrees("group-order", size=2, ranks=(0, 1), says=("first", "second"), report="NVIDIA/nccl#574")
def test_one_rank_blocks_where_the_other_runs_ahead(world):
    first, second = two_groups()
    if world.is_first:
        dist.all_reduce(torch.ones(4), group=first)
        dist.all_reduce(torch.ones(4), group=second)
    else:
        ahead = dist.all_reduce(torch.ones(4), group=second, async_op=True)
        dist.all_reduce(torch.ones(4), group=first)
        ahead.wait()


@disagrees("group-order", size=3, ranks=(0, 1, 2), says="pair", report="NVIDIA/Megatron-LM#5749")
def test_a_cycle_of_pairs(world):
    pairs = [dist.new_group([a, b], group_desc=f"pair {a}{b}") for a, b in ((0, 1), (1, 2), (0, 2))]
    mine = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[world.rank]
    one_of_each([lambda g=pairs[i]: dist.all_reduce(torch.ones(2), group=g, async_op=True) for i in mine])


# --- a message that crosses a collective


@disagrees("p2p-order", size=2, ranks=(0, 1), says=("send", "all_reduce"), report="pytorch/pytorch#108378")
def test_a_message_crosses_a_reduction(world):
    if world.is_first:
        work = dist.isend(torch.ones(4), 1)
        dist.all_reduce(torch.ones(4))
        work.wait()
    else:
        dist.all_reduce(torch.ones(4))
        dist.recv(torch.ones(4), 0)


@disagrees("p2p-order", size=2, ranks=(0, 1), says=("recv", "barrier"), report="vllm-project/vllm#56956")
def test_a_receive_is_posted_before_a_barrier_and_answered_after_it(world):
    if world.is_first:
        work = dist.irecv(torch.ones(4), 1)
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.send(torch.ones(4), 0)


@disagrees("p2p-order", size=2, ranks=(0, 1), says="tag")
def test_two_tags_in_opposite_order(world):
    if world.is_first:
        one_of_each([lambda t=tag: dist.isend(torch.ones(4), 1, tag=t) for tag in (1, 2)])
    else:
        one_of_each([lambda t=tag: dist.irecv(torch.ones(4), 0, tag=t) for tag in (2, 1)])


# --- a cycle of messages that asynchronous calls hide


@disagrees("p2p-cycle", size=2, ranks=(0, 1), says="send", report="pytorch/pytorch#109401")
def test_both_begin_with_a_send(world):
    work = dist.isend(torch.ones(4), 1 - world.rank)
    dist.recv(torch.ones(4), 1 - world.rank)
    work.wait()


@disagrees("p2p-cycle", size=4, ranks=(0, 1, 2, 3), says="send", report="meta-pytorch/torchrec#4472")
def test_a_ring_that_begins_with_sends(world):
    work = dist.isend(torch.ones(4), (world.rank + 1) % world.size)
    dist.recv(torch.ones(4), (world.rank - 1) % world.size)
    work.wait()


@disagrees("p2p-cycle", size=2, ranks=(0, 1), says="recv", report="NVIDIA/nccl#783")
def test_both_begin_with_a_receive(world):
    work = dist.irecv(torch.ones(4), 1 - world.rank)
    dist.send(torch.ones(4), 1 - world.rank)
    work.wait()


# --- nobody waits


@disagrees("never-waited", size=2, ranks=(0, 1), says="all_reduce")
@leaves_calls_open
def test_nobody_waits_for_the_reduction(world):
    dist.all_reduce(torch.ones(4), async_op=True)


@disagrees("never-waited", size=2, ranks=(1,), says="all_gather")
@leaves_calls_open
def test_one_rank_forgets_to_wait(world):
    work = dist.all_gather_into_tensor(torch.zeros(8), torch.ones(4), async_op=True)
    if world.is_first:
        work.wait()


# --- groups that not all ranks make alike


@disagrees(
    "extra", size=2, ranks=(0,), says=("group", "never made it"), report="meta-pytorch/torchcomms#2287"
)
@leaves_calls_open
def test_one_rank_makes_a_group_for_itself(world):
    if world.is_first:
        dist.new_group([0])


@disagrees("mismatch", size=2, ranks=(0, 1), says=("mesh_dp", "mesh_tp"), report="pytorch/pytorch#140820")
@leaves_calls_open
def test_the_mesh_of_one_rank_is_transposed(world):
    init_device_mesh("cpu", (2, 1) if world.is_first else (1, 2), mesh_dim_names=("dp", "tp"))


# --- rows that one rank gives and the other does not take


@disagrees("mismatch", size=2, ranks=(0, 1), says=("all_to_all_single", "giving 2,1"))
@leaves_calls_open
def test_a_token_is_dropped_between_counting_and_sending(world):
    give = [2, 1] if world.is_first else [2, 2]
    dist.all_to_all_single(torch.zeros(4), torch.ones(sum(give)), [2, 2], give)
