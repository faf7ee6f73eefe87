"""Programs that hang in collectives, groups and the store, each with what must be said of it.

Where a report is named, the program has what its author describes, never its code.
"""

import contextlib

import torch
import torch.distributed as dist
from planted import hangs


def pairs(*members):
    """A group for each of these sets of ranks, made by everybody."""
    return [dist.new_group(list(ranks), group_desc="-".join(map(str, ranks))) for ranks in members]


def reduce(group=None):
    dist.all_reduce(torch.ones(4), group=group)


def store():
    """The store that the ranks have met at."""
    return dist.distributed_c10d._get_default_store()


# --- a rank is missing in a collective


@hangs("missing", size=3, waits=(0, 1), says="all_reduce", report="sgl-project/sglang#26923")
def test_returns_early_since_its_own_queue_is_empty(world):
    reduce()
    queue = [] if world.rank == 2 else ["write"]
    if not queue:
        return
    reduce()


@hangs("missing", size=2, waits=(0,), says="all_reduce", report="axolotl-ai-cloud/axolotl#461")
def test_one_batch_less(world):
    for _ in range(3 - world.rank):
        reduce()


@hangs("missing", size=3, waits=(0, 2), says="all_gather", report="huggingface/transformers#17478")
def test_one_rank_stops_early(world):
    metrics = [torch.zeros(1) for _ in range(world.size)]
    for epoch in range(3):
        dist.all_gather(metrics, torch.ones(1))
        if world.rank == 1 and epoch == 1:
            break


@hangs("missing", size=4, waits=(0,), says="barrier", report="facebookresearch/pytext#585")
def test_only_the_first_rank_meets_at_the_end(world):
    dist.broadcast(torch.ones(2), 0)
    if world.is_first:
        dist.barrier()


# --- another operation at the same number


@hangs(
    "operations",
    size=2,
    waits=(0, 1),
    says=("broadcast", "all_reduce"),
    report="speechbrain/speechbrain#2401",
)
def test_saves_while_the_other_still_trains(world):
    if world.is_first:
        dist.broadcast(torch.ones(1, dtype=torch.long), 1)
    else:
        dist.all_reduce(torch.ones(25))


@hangs(
    "operations", size=2, waits=(0, 1), says=("all_gather", "barrier"), report="huggingface/accelerate#2375"
)
def test_evaluates_while_the_other_has_left_the_loop(world):
    if world.is_first:
        dist.all_gather_into_tensor(torch.zeros(8), torch.ones(4))
    else:
        dist.barrier()


@hangs(
    "operations",
    size=3,
    waits=(0, 1, 2),
    says=("all_reduce", "all_to_all"),
    report="sgl-project/sgl-kernel-npu#69",
)
def test_a_rank_without_tokens_does_not_dispatch(world):
    tokens = torch.ones(6) if world.rank else torch.ones(0)
    if len(tokens):
        dist.all_to_all_single(torch.zeros(6), tokens)
    reduce()


# --- a cycle over groups


@hangs(
    "groups", size=2, waits=(0, 1), says=("all_reduce", "first", "second"), report="pytorch/torchtitan#4064"
)
def test_two_communicators_in_opposite_order(world):
    first, second = (dist.new_group([0, 1], group_desc=name) for name in ("first", "second"))
    for group in (first, second) if world.is_first else (second, first):
        reduce(group)


@hangs(
    "groups",
    size=4,
    waits=(0, 1, 2, 3),
    says=("all_reduce", "all_to_all"),
    report="meta-pytorch/torchrec#4149",
)
def test_rows_and_columns_of_a_mesh_in_different_order(world):
    top, bottom, left, right = pairs((0, 1), (2, 3), (0, 2), (1, 3))
    row, column = (top, bottom)[world.rank // 2], (left, right)[world.rank % 2]

    def shard():
        dist.all_to_all_single(torch.zeros(2), torch.ones(2), group=row)

    def replicate():
        reduce(column)

    for step in (shard, replicate) if world.rank in (0, 3) else (replicate, shard):
        step()


@hangs("groups", size=3, waits=(0, 1, 2), says="barrier", report="Lightning-AI/pytorch-lightning#15195")
def test_a_barrier_of_the_world_between_overlapping_groups(world):
    left, right = pairs((0, 1), (1, 2))
    if world.rank == 0:
        reduce(left)
    elif world.rank == 1:
        dist.barrier(group=right)
        reduce(left)
    else:
        dist.barrier()
        dist.barrier(group=right)


# --- a key of the store that nobody sets


@hangs("store", size=2, waits=(0,), says="worker/2", report="pytorch/pytorch#53840")
def test_waits_for_one_key_too_many(world):
    if world.is_first:
        store().wait(["worker/1", "worker/2"])
    else:
        store().set("worker/1", "here")


@hangs("store", size=3, waits=(1, 2), says="unique-id", report="pytorch/pytorch#107177")
def test_the_first_rank_never_publishes_the_id(world):
    if world.rank:
        store().get("unique-id")


@hangs("store", size=2, waits=(0, 1), says=("ready/0", "ready/1"))
def test_each_waits_for_the_other_before_it_says_that_it_is_ready(world):
    store().get(f"ready/{1 - world.rank}")
    store().set(f"ready/{world.rank}", "yes")


# --- the store and a collective wait for each other


@hangs("store-and-collective", size=2, waits=(0, 1), says=("barrier", "downloaded"))
def test_the_key_is_set_after_the_barrier(world):
    if world.is_first:
        store().wait(["downloaded"])
        dist.barrier()
    else:
        dist.barrier()
        store().set("downloaded", "yes")


@hangs(
    "store-and-collective",
    size=3,
    waits=(0, 1, 2),
    says=("all_reduce", "weights"),
    report="vllm-project/vllm#56956",
)
def test_a_worker_waits_for_a_message_that_follows_the_warm_up(world):
    if world.rank == 2:
        store().get("weights")
    reduce()
    store().set("weights", "loaded")


@hangs("store-and-collective", size=2, waits=(0, 1), says=("recv", "go"))
def test_the_sender_waits_for_the_go_of_the_receiver(world):
    if world.is_first:
        store().wait(["go"])
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
        store().set("go", "now")


# --- the partner has finished, or has swallowed its error


@hangs("gone", size=2, waits=(0,), says="barrier")
def test_an_error_is_swallowed_before_the_barrier(world):
    with contextlib.suppress(ValueError):
        if world.rank == 1:
            raise ValueError("a corrupt file")
        dist.barrier()


@hangs("gone", size=2, waits=(0,), says="recv", report="pytorch/pytorch#108378")
def test_the_sender_has_finished(world):
    if world.is_first:
        dist.recv(torch.ones(4), 1)


@hangs("gone", size=4, waits=(0, 1, 2), says="broadcast")
def test_the_source_could_not_load_and_has_gone_on(world):
    weights = torch.zeros(8)
    if world.rank == 3:
        try:
            weights = torch.load("/nowhere/weights.pt")
        except OSError:
            return
    dist.broadcast(weights, 3)


# --- a group that only some of its ranks make


@hangs("new-group", size=2, waits=(0,), says="group", report="pytorch/pytorch#81291")
def test_only_one_of_its_members_makes_the_group(world):
    if world.is_first:
        dist.new_group([0, 1])


@hangs("new-group", size=3, waits=(0, 1), says="group")
def test_a_member_of_a_locally_made_group_stays_away(world):
    if world.rank < 2:
        dist.new_group([0, 1, 2], use_local_synchronization=True)


@hangs("new-group", size=4, waits=(0, 1), says="group", report="pytorch/pytorch#38375")
def test_only_half_of_the_ranks_cut_the_world_into_subgroups(world):
    if world.rank < 2:
        dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])


@hangs("group-numbers", size=2, waits=(0, 1), says=("new_group(0-1) as group #", "new_group(1)"))
def test_one_rank_has_made_a_group_for_itself(world):
    if world.rank == 1:
        dist.new_group([1])
    dist.new_group([0, 1])


@hangs("group-numbers", size=3, waits=(0, 1, 2), says="in its place", report="pytorch/pytorch#140820")
def test_one_rank_skips_a_group_that_it_is_no_member_of(world):
    if world.rank != 2:
        dist.new_group([0])
    dist.new_group([0, 1, 2])


# --- tensors of other sizes


@hangs("sizes", size=3, waits=(0, 1), says="float32[5] instead of float32[6]", report="NVIDIA/nccl#1394")
def test_the_last_rank_reduces_a_shorter_tensor(world):
    dist.all_reduce(torch.ones(5 if world.rank == 2 else 6))


@hangs("sizes", size=3, waits=(0, 1), says=("reduce_scatter_tensor", "instead of"), report="NVIDIA/nccl#531")
def test_the_last_rank_scatters_a_shorter_tensor(world):
    length = 5 if world.rank == 2 else 6
    dist.reduce_scatter_tensor(torch.zeros(length), torch.ones(3 * length))


@hangs("sizes", size=3, waits=(0, 1), says="float32[10]", report="NVIDIA/nccl#1417")
def test_a_flattened_bucket_lacks_a_parameter(world):
    parameters = [torch.ones(2, 2), torch.ones(4), *([torch.ones(2)] if world.rank == 2 else [torch.ones(4)])]
    dist.all_reduce(torch.cat([each.flatten() for each in parameters]), async_op=True).wait()


# --- different roots, or a reduction to one against one to all


@hangs("roots", size=2, waits=(0, 1), says="broadcast")
def test_each_takes_the_other_for_the_source(world):
    dist.broadcast(torch.ones(4), 1 - world.rank)


@hangs("roots", size=2, waits=(0, 1), says=("reduce", "all_reduce"), report="pytorch/pytorch#79901")
def test_reduces_to_one_where_the_other_reduces_to_all(world):
    if world.is_first:
        dist.all_reduce(torch.ones(20))
    else:
        dist.reduce(torch.ones(20), 1)


@hangs("roots", size=3, waits=(0, 1, 2), says="gather")
def test_each_gathers_to_itself(world):
    slots = [torch.zeros(2) for _ in range(world.size)]
    dist.gather(torch.ones(2), slots, dst=world.rank)


# --- objects and barriers


@hangs("objects", size=3, waits=(0, 2), says="gather", report="deepspeedai/DeepSpeed#5794")
def test_objects_are_gathered_by_those_who_have_some(world):
    if world.rank != 1:
        dist.all_gather_object([None] * world.size, {"rank": world.rank})


@hangs("objects", size=3, waits=(1, 2), says="broadcast", report="meta-pytorch/torchrec#4601")
def test_the_leader_is_counted_in_the_group_by_one_and_in_the_world_by_the_other(world):
    (group,) = pairs((1, 2))
    if world.rank:
        leader = {"group_src": 1} if world.rank == 1 else {"src": 1}
        dist.broadcast_object_list(["result"], group=group, **leader)


@hangs("objects", size=2, waits=(0,), says="barrier", report="isi-nlp/rtg#11")
def test_an_asynchronous_barrier_is_awaited_by_one(world):
    if world.is_first:
        dist.barrier(async_op=True).wait()
