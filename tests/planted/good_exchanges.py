"""Correct programs of groups, messages, pipelines, stores and threads: no tool may find anything in them.

Where a report is named, the program is what its author made right, never its code.
"""

import asyncio
import collections
import contextlib
import datetime
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from planted import fine
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor

CPU = torch.device("cpu")


def store():
    """The store that the ranks have met at."""
    return dist.distributed_c10d._get_default_store()


def wait_for_all(works):
    for work in works:
        work.wait()


def exchange(*calls):
    """Messages that go at the same time: an operation, a tensor and a peer each."""
    wait_for_all(dist.batch_isend_irecv([dist.P2POp(*call) for call in calls]))


# --- pipelines


def loss_of(output, _):
    return output.sum()


@fine("pipeline", size=2)
def test_each_rank_has_two_stages_that_take_turns(world):
    """An interleaved schedule goes round twice."""
    stages = [PipelineStage(nn.Linear(4, 4), index, 4, CPU) for index in (world.rank, world.rank + 2)]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=loss_of)
    rows = torch.ones(8, 4)
    schedule.step(*([rows] if world.is_first else []), target=None if world.is_first else rows)


@fine("pipeline", size=3)
def test_a_pipeline_of_three_stages_shares_its_loss(world):
    """The last stage tells the loss to all."""
    stage = PipelineStage(nn.Linear(4, 4), world.rank, world.size, CPU)
    schedule = Schedule1F1B(stage, n_microbatches=6, loss_fn=loss_of)
    losses = []
    if world.is_first:
        schedule.step(torch.ones(12, 4))
    elif world.rank == world.size - 1:
        schedule.step(target=torch.ones(12, 4), losses=losses)
    else:
        schedule.step()
    loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
    dist.broadcast(loss, world.size - 1)


@fine("pipeline", size=4)
def test_two_pipelines_reduce_the_gradients_of_their_stages(world):
    """Pipelines in one dimension of a mesh, replicas in the other one."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    torch.manual_seed(mesh.get_local_rank("pp"))
    layer = nn.Linear(4, 4)
    stage = PipelineStage(layer, mesh.get_local_rank("pp"), 2, CPU, group=mesh["pp"].get_group())
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_of)
    rows = torch.ones(4, 4)
    schedule.step(*([rows] if stage.is_first else []), target=None if stage.is_first else rows)
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())


@fine("pipeline", size=3, report="pytorch/PiPPy#1000")
def test_a_skip_connection_is_a_batch_for_each_peer(world):
    """The last stage takes what comes over its neighbour apart from what comes directly."""
    rows = torch.ones(4)
    if world.is_first:
        exchange((dist.isend, rows, 1))
        exchange((dist.isend, rows, 2))
    elif world.rank == 1:
        exchange((dist.irecv, rows, 0))
        exchange((dist.isend, rows, 2))
    else:
        exchange((dist.irecv, torch.zeros(4), 0))
        exchange((dist.irecv, torch.zeros(4), 1))


# --- messages


@fine("ring", size=3)
def test_a_sum_goes_round_the_ring(world):
    """Each rank adds what comes to what it gives on."""
    total, passed = torch.tensor([1.0 + world.rank]), torch.tensor([1.0 + world.rank])
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for _ in range(world.size - 1):
        received = torch.zeros(1)
        exchange((dist.isend, passed, after), (dist.irecv, received, before))
        total += received
        passed = received
    assert total == 6


@fine("ring", size=2)
def test_attention_computes_with_one_block_while_the_next_one_comes(world):
    """Two buffers take turns."""
    block, result = torch.ones(4, 4), torch.zeros(4, 4)
    for _ in range(3):
        coming = torch.zeros(4, 4)
        calls = [
            dist.P2POp(dist.isend, block, 1 - world.rank),
            dist.P2POp(dist.irecv, coming, 1 - world.rank),
        ]
        works = dist.batch_isend_irecv(calls)
        result += block @ block
        wait_for_all(works)
        block = coming


@fine("ring", size=3)
def test_a_token_goes_round_and_the_first_rank_begins(world):
    """Each rank waits for its turn."""
    token = torch.zeros(1)
    for _ in range(2):
        if not world.is_first:
            dist.recv(token, world.rank - 1)
        dist.send(token, (world.rank + 1) % world.size)
        if world.is_first:
            dist.recv(token, world.size - 1)


@fine("stencil", size=3)
def test_neighbours_exchange_their_edges(world):
    """Ranks at the ends have one neighbour."""
    cells = torch.ones(6)
    for _ in range(2):
        calls = []
        if world.rank > 0:
            calls += [(dist.isend, cells[1:2], world.rank - 1), (dist.irecv, cells[:1], world.rank - 1)]
        if world.rank < world.size - 1:
            calls += [(dist.isend, cells[4:5], world.rank + 1), (dist.irecv, cells[5:], world.rank + 1)]
        exchange(*calls)
        cells[1:5] *= 0.5


@fine("stencil", size=4)
def test_pairs_of_odd_and_even_turns_sort_their_numbers(world):
    """Who sends first follows from the rank."""
    number = torch.tensor([4.0 - world.rank])
    for turn in range(world.size):
        partner = world.rank + (1 if (world.rank + turn) % 2 == 0 else -1)
        if not 0 <= partner < world.size:
            continue
        other = torch.zeros(1)
        if world.rank < partner:
            dist.send(number, partner)
            dist.recv(other, partner)
            number = torch.minimum(number, other)
        else:
            dist.recv(other, partner)
            dist.send(number, partner)
            number = torch.maximum(number, other)
    assert number == 1 + world.rank


@fine("tree", size=4)
def test_weights_go_down_a_tree(world):
    """Each rank that has them sends them on."""
    weights = torch.ones(4) if world.is_first else torch.zeros(4)
    for distance in (2, 1):
        if world.rank % (2 * distance) == 0:
            dist.send(weights, world.rank + distance)
        elif world.rank % distance == 0:
            dist.recv(weights, world.rank - distance)
    assert weights.sum() == 4


@fine("tree", size=3)
def test_a_barrier_is_made_of_messages(world):
    """In each round a rank signals another one, with the round as the tag."""
    for round_number, distance in enumerate((1, 2)):
        after, before = ((world.rank + step) % world.size for step in (distance, -distance))
        exchange(
            (dist.isend, torch.ones(1), after, None, round_number),
            (dist.irecv, torch.zeros(1), before, None, round_number),
        )


@fine("workers", size=3)
def test_the_first_rank_takes_results_in_the_order_of_their_arrival(world):
    """Workers send different numbers of results, and a last word."""
    if world.is_first:
        working = world.size - 1
        while working:
            result = torch.zeros(1)
            dist.recv(result)
            working -= int(result < 0)
    else:
        for _ in range(world.rank):
            dist.send(torch.ones(1), 0)
        dist.send(-torch.ones(1), 0)


@fine("workers", size=2)
def test_the_length_of_a_message_is_sent_before_it(world):
    """Trajectories differ in length."""
    for length in (3, 1, 5):
        if world.is_first:
            size = torch.zeros(1, dtype=torch.long)
            dist.recv(size, 1)
            dist.recv(torch.zeros(int(size)), 1)
        else:
            dist.send(torch.tensor([length]), 0)
            dist.send(torch.ones(length), 0)


@fine("workers", size=2)
def test_lists_of_objects_are_sent_back_and_forth(world):
    """One answer for each question."""
    for count in (1, 3):
        if world.is_first:
            dist.send_object_list([{"question": index} for index in range(count)], 1)
            dist.recv_object_list([None] * count, 1)
        else:
            questions = [None] * count
            dist.recv_object_list(questions, 0)
            dist.send_object_list(questions, 0)


@fine("workers", size=2)
def test_control_messages_have_a_tag_of_their_own(world):
    """Data and control are received in the order in which they were sent."""
    for tag in (1, 2, 1):
        if world.is_first:
            dist.send(torch.ones(4), 1, tag=tag)
        else:
            dist.recv(torch.zeros(4), 0, tag=tag)


# --- exchanges of all with all


@fine("all to all", size=3, report="pytorch/pytorch#32361")
def test_counts_are_exchanged_before_tokens(world):
    """What a rank takes is what the others give."""
    give = [(world.rank + peer) % 3 for peer in range(world.size)]
    counts = torch.zeros(3, dtype=torch.long)
    dist.all_to_all_single(counts, torch.tensor(give))
    tokens = torch.zeros(int(counts.sum()), 2)
    dist.all_to_all_single(tokens, torch.ones(sum(give), 2), counts.tolist(), give)
    assert tokens.sum() == 2 * len(tokens)


@fine("all to all", size=2, report="pytorch/pytorch#146468")
def test_a_rank_without_tokens_takes_part_in_the_exchange(world):
    """It gives nothing, to itself neither."""
    give, take = ([0, 0], [0, 2]) if world.is_first else ([2, 1], [0, 1])
    dist.all_to_all_single(torch.zeros(sum(take)), torch.ones(sum(give)), take, give)


@fine("all to all", size=2)
def test_a_sum_is_scattered_and_gathered(world):
    """Two calls that make an all_reduce."""
    part, whole = torch.zeros(4), torch.zeros(8)
    dist.reduce_scatter_tensor(part, torch.ones(8))
    dist.all_gather_into_tensor(whole, part)
    assert whole.sum() == 16


@fine("all to all", size=3)
def test_each_rank_is_the_root_once(world):
    """Roots go round."""
    for root in range(world.size):
        mine = world.rank == root
        dist.gather(torch.ones(2), [torch.zeros(2) for _ in range(3)] if mine else None, dst=root)
        dist.scatter(torch.zeros(2), [torch.ones(2) for _ in range(3)] if mine else None, src=root)
        dist.reduce(torch.ones(2), root)


@fine("all to all", size=2)
def test_a_bucket_is_reduced_as_a_list(world):
    """Tensors of different shapes, in one order."""
    tensors = [torch.ones(2), torch.ones(2, 2)]
    dist.all_reduce_coalesced(tensors)
    assert tensors[1].sum() == 8


# --- groups


@fine("groups", size=4)
def test_overlapping_groups_are_used_in_one_order(world):
    """Tensor, pipeline and embedding groups share ranks."""
    members = {"tensor": [0, 1], "pipeline": [0, 2], "embedding": [0, 3], "rest": [1, 2, 3]}
    groups = {name: dist.new_group(ranks) for name, ranks in members.items()}
    for _ in range(2):
        for name, ranks in members.items():
            if world.rank in ranks:
                dist.all_reduce(torch.ones(2), group=groups[name])


@fine("groups", size=3)
def test_a_group_is_closed_and_made_again(world):
    """Other members each time."""
    for ranks in ([0, 1], [1, 2], [0, 1, 2]):
        group = dist.new_group(ranks, timeout=datetime.timedelta(minutes=5))
        if world.rank in ranks:
            dist.all_reduce(torch.ones(1), group=group)
        dist.barrier()
        if world.rank in ranks:
            dist.destroy_process_group(group)


@fine("groups", size=4)
def test_dimensions_of_a_mesh_are_flattened(world):
    """Three groups with the same ranks in one of them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    both = mesh["dp", "tp"]._flatten("dp_tp")
    for each in (mesh["tp"], both, mesh["dp"]):
        dist.all_reduce(torch.ones(2), group=each.get_group())


@fine("groups", size=3)
def test_ranks_outside_of_a_group_do_something_else(world):
    """Members reduce several times while the other rank has nothing to do."""
    pair = dist.new_group([0, 2])
    if world.rank != 1:
        for _ in range(3):
            dist.all_reduce(torch.ones(2), group=pair)
    dist.barrier()


@fine("groups", size=2)
def test_all_come_to_a_monitored_barrier(world):
    """In the default group and in another one."""
    dist.monitored_barrier()
    dist.monitored_barrier(dist.new_group(), wait_all_ranks=True)


# --- tensors in shards


@fine("dtensor", size=2)
def test_five_rows_are_shared_by_two_ranks(world):
    """One rank has a row more."""
    mesh = init_device_mesh("cpu", (world.size,))
    tensor = distribute_tensor(torch.ones(5, 4), mesh, [Shard(0)])
    assert tensor.to_local().shape[0] == 3 - world.rank
    assert (tensor * 2).full_tensor().sum() == 40


@fine("dtensor", size=2)
def test_partial_sums_become_shards_and_replicas(world):
    """Three placements of one tensor."""
    mesh = init_device_mesh("cpu", (world.size,))
    partial = DTensor.from_local(torch.ones(4, 4), mesh, [Partial()])
    shards = partial.redistribute(mesh, [Shard(0)])
    assert shards.redistribute(mesh, [Replicate()]).to_local().sum() == 32


@fine("dtensor", size=2)
def test_a_module_is_replicated_by_its_mesh(world):
    """Weights of the first rank are sent to all."""
    mesh = init_device_mesh("cpu", (world.size,))
    model = distribute_module(nn.Linear(4, 4), mesh)
    rows = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    model(rows).sum().backward()


# --- handles


@fine("handles", size=2)
def test_handles_wait_in_a_queue(world):
    """A call is awaited two steps later."""
    pending = collections.deque()
    for _ in range(5):
        pending.append(dist.all_reduce(torch.ones(4), async_op=True))
        if len(pending) > 2:
            pending.popleft().wait()
    wait_for_all(pending)


@fine("handles", size=2)
def test_handles_are_awaited_when_a_block_ends(world):
    """A stack of contexts has them."""
    with contextlib.ExitStack() as stack:
        for count in (2, 4):
            stack.callback(dist.all_reduce(torch.ones(count), async_op=True).wait)
        torch.ones(4).sum()


@fine("handles", size=2)
def test_code_without_a_file_keeps_a_handle(world):
    """The line that runs it uses nothing of what it returns."""
    exec("work = dist.all_reduce(torch.ones(4), async_op=True)\nwork.wait()", {"dist": dist, "torch": torch})


@fine("handles", size=2)
def test_a_generator_yields_while_its_call_goes_on(world):
    """It waits when it is asked for the next one."""

    def batches():
        for _ in range(3):
            rows = torch.ones(4)
            work = dist.broadcast(rows, 0, async_op=True)
            work.wait()
            yield rows

    assert sum(float(rows.sum()) for rows in batches()) == 12


@fine("handles", size=2)
def test_an_event_loop_waits_in_a_thread(world):
    """The loop itself stays free."""

    async def reduce():
        total = torch.ones(4)
        work = dist.all_reduce(total, async_op=True)
        await asyncio.to_thread(work.wait)
        return total.sum()

    assert asyncio.run(reduce()) == 8


@fine("handles", size=2)
def test_the_result_of_one_call_is_the_input_of_the_next(world):
    """Futures are chained."""
    total = torch.ones(4)
    future = dist.all_reduce(total, async_op=True).get_future().then(lambda done: done.value()[0] / 2)
    mean = future.wait()
    dist.all_reduce(mean)
    assert mean.sum() == 8


@fine("handles", size=2)
def test_futures_are_waited_for_together(world):
    """Two calls, of which one has something to do after it."""
    totals = [torch.ones(4), torch.ones(4)]
    futures = [dist.all_reduce(total, async_op=True).get_future() for total in totals]
    torch.futures.wait_all([futures[0], futures[1].then(lambda done: done.value()[0] / 2)])
    assert torch.cat(totals).sum() == 16


# --- threads


@fine("threads", size=2)
def test_a_thread_prepares_the_next_batch_in_a_group_of_its_own(world):
    """The main thread reduces gradients meanwhile."""
    group = dist.new_group()
    batches = []

    def prepare():
        for _ in range(3):
            rows = torch.ones(4)
            dist.broadcast(rows, 0, group=group)
            batches.append(rows)

    thread = threading.Thread(target=prepare)
    thread.start()
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    thread.join()
    assert len(batches) == 3


@fine("threads", size=2)
def test_a_pool_of_threads_has_a_group_for_each(world):
    """Calls of one group stay in one thread."""
    groups = [dist.new_group() for _ in range(3)]

    def reduce(group):
        total = torch.ones(4)
        dist.all_reduce(total, group=group)
        return float(total.sum())

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(reduce, groups)) == [8.0] * 3


# --- stores


@fine("store", size=3)
def test_ranks_take_tasks_from_a_counter(world):
    """Some ranks have more to do than others."""
    done = torch.zeros(1)
    while store().add("tasks", 1) <= 10:
        done += 1
    dist.all_reduce(done)
    assert done == 10


@fine("store", size=3)
def test_the_first_to_come_is_the_leader(world):
    """It publishes an address for all."""
    leader = int(store().compare_set("leader", "", str(world.rank)))
    if leader == world.rank:
        store().set("address", f"rank {world.rank}")
    assert store().get("address") == f"rank {leader}".encode()


@fine("store", size=2)
def test_a_generation_of_ranks_has_a_prefix(world):
    """Old keys do not count."""
    for generation in range(3):
        own = dist.PrefixStore(f"generation{generation}", store())
        own.set(f"here/{world.rank}", "")
        own.wait([f"here/{rank}" for rank in range(world.size)])


@fine("store", size=2)
def test_ranks_meet_in_a_file(world, world_tmp_path):
    """A second store, for a group of its own."""
    own = dist.FileStore(str(world_tmp_path / "store"), world.size)
    group = dist.ProcessGroupGloo(own, world.rank, world.size, datetime.timedelta(minutes=5))
    total = torch.ones(4)
    group.allreduce([total]).wait()
    assert total.sum() == 8
