"""More programs that touch a tensor while a call uses it, and pass over gloo all the same: each with what must be found in it.

Where a report is named, the program follows the situation that its author describes, never its code.
"""

import copy

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from planted import disagrees
from torch import nn
from torch.nn import functional

BOTH = (0, 1)


def with_gradient(count=4):
    """A parameter and its gradient."""
    parameter = nn.Parameter(torch.ones(count))
    parameter.grad = torch.ones(count)
    return parameter


# --- the result is read before it is there


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "norm"))
def test_gradients_are_clipped_before_they_are_reduced(world):
    """Each rank clips by the norm of its own gradients, or of the sum."""
    parameter = with_gradient()
    work = dist.all_reduce(parameter.grad, async_op=True)
    nn.utils.clip_grad_norm_([parameter], 1e9)
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "foreach"), report="pytorch/pytorch#27806")
def test_adam_steps_with_a_gradient_that_is_on_its_way(world):
    """The step reads the gradient."""
    parameter = with_gradient()
    optimizer = torch.optim.Adam([parameter], foreach=True)
    work = dist.all_reduce(parameter.grad, async_op=True)
    optimizer.step()
    work.wait()


@disagrees("output-read", size=2, ranks=(1,), says=("recv", "clone"))
def test_a_model_is_copied_while_its_weights_arrive(world):
    """The copy has some of the old weights."""
    layer = nn.Linear(4, 4)
    if world.is_first:
        dist.send(layer.weight.detach(), 1)
    else:
        work = dist.irecv(layer.weight.detach(), 0)
        copy.deepcopy(layer)
        work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_gather", "lerp"))
def test_an_average_of_weights_takes_them_from_the_gathered_buffer(world):
    """The parameters are views of a buffer that is gathered anew."""
    whole, average = torch.zeros(8), torch.zeros(4)
    first, _ = whole.chunk(2)
    work = dist.all_gather_into_tensor(whole, torch.ones(4), async_op=True)
    average.lerp_(first, 0.1)
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_to_all_single", "mm"))
def test_an_expert_computes_with_tokens_that_are_not_there(world):
    """A layer is applied to what the exchange has not brought yet."""
    tokens = torch.zeros(2, 4)
    work = dist.all_to_all_single(tokens, torch.ones(2, 4), async_op=True)
    functional.linear(tokens, torch.ones(4, 4))
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("recv", "mm"))
def test_ring_attention_uses_the_block_that_comes_next(world):
    """Of two buffers, the one that is received into is taken."""
    blocks = [torch.ones(4, 4), torch.zeros(4, 4)]
    calls = [dist.P2POp(dist.isend, blocks[0], 1 - world.rank)]
    calls.append(dist.P2POp(dist.irecv, blocks[1], 1 - world.rank))
    works = dist.batch_isend_irecv(calls)
    torch.ones(4, 4) @ blocks[1]
    for work in works:
        work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("broadcast", "equal"))
def test_a_stop_flag_is_looked_at_before_it_comes(world):
    """The order to stop is sent in the background."""
    flag = torch.zeros(1, dtype=torch.long)
    work = dist.broadcast(flag, 0, async_op=True)
    torch.equal(flag, torch.ones(1, dtype=torch.long))
    work.wait()


@disagrees(
    "output-read", size=2, ranks=BOTH, says=("all_gather", "_to_copy"), report="pytorch/pytorch#152534"
)
def test_a_gathered_weight_is_cast_before_it_is_there(world):
    """The copy in full precision is of an earlier moment."""
    whole = torch.zeros(8, dtype=torch.bfloat16)
    work = dist.all_gather_into_tensor(whole, torch.ones(4, dtype=torch.bfloat16), async_op=True)
    whole.float()
    work.wait()


@disagrees(
    "output-read",
    size=2,
    ranks=BOTH,
    says=("all_gather", "clone"),
    report="gazingstars123/Anima-Standalone-Trainer#39",
)
def test_a_gathered_sequence_is_transposed_before_the_wait(world):
    """A handle and its result are given back together, and the result is a copy."""

    def gather(part):
        whole = torch.zeros(4, 3)
        work = dist.all_gather_into_tensor(whole, part, async_op=True)
        return work, whole.transpose(0, 1).contiguous()

    work, _ = gather(torch.ones(2, 3))
    work.wait()


@disagrees(
    "output-read",
    size=2,
    ranks=BOTH,
    says=("all_gather_into_tensor", "result"),
    report="NVIDIA/Megatron-LM#6389",
)
def test_a_prefetch_gathers_from_a_buffer_that_is_gathered(world):
    """The weight of the next layer is a view of a bucket whose gather has not ended."""
    bucket, weight = torch.zeros(8), torch.zeros(8)
    first = dist.all_gather_into_tensor(bucket, torch.ones(4), async_op=True)
    second = dist.all_gather_into_tensor(weight, bucket[:4], async_op=True)
    first.wait()
    second.wait()


@disagrees(
    "output-read", size=2, ranks=(1,), says=("broadcast", "all_gather"), report="InternLM/InternEvo#64"
)
def test_updated_weights_are_gathered_while_they_are_broadcast(world):
    """The owner sends what it has updated, and others use it for the next forward pass."""
    weight = torch.ones(4)
    update = dist.broadcast(weight, 0, async_op=True)
    prefetch = dist.all_gather_into_tensor(torch.zeros(8), weight, async_op=True)
    prefetch.wait()
    update.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "copy_"), report="OpenNMT/OpenNMT-py#2295")
def test_sums_are_copied_back_before_they_are_there(world):
    """A flat buffer is reduced, and its parts become the gradients again."""
    gradients = [torch.ones(2), torch.ones(3)]
    buffer = torch.cat(gradients)
    work = dist.all_reduce(buffer, async_op=True)
    for gradient, summed in zip(gradients, buffer.split([2, 3]), strict=True):
        gradient.copy_(summed)
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("reduce_scatter_tensor", "all_reduce"))
def test_a_functional_reduction_copies_what_is_on_its_way(world):
    """Shards are summed over replicas before they were scattered."""
    shard = torch.zeros(4)
    work = dist.reduce_scatter_tensor(shard, torch.ones(8), async_op=True)
    total = collectives.all_reduce(shard, "sum", dist.group.WORLD)
    work.wait()
    assert total.shape == shard.shape


# --- the result is written before it is there


@disagrees("output-written", size=2, ranks=BOTH, says=("all_reduce", "index_add_"))
def test_more_rows_are_added_to_a_buffer_that_is_reduced(world):
    """A sparse gradient is accumulated in place."""
    buffer = torch.zeros(4, 4)
    work = dist.all_reduce(buffer, async_op=True)
    buffer.index_add_(0, torch.tensor([1]), torch.ones(1, 4))
    work.wait()


@disagrees("output-written", size=2, ranks=BOTH, says="all_reduce", report="InfiniTensor/InfiniTrain#213")
def test_a_second_backward_pass_accumulates_into_what_is_reduced(world):
    """The gradient of the first micro batch is on its way."""
    layer = nn.Linear(4, 1, bias=False)
    layer(torch.ones(2, 4)).sum().backward()
    work = dist.all_reduce(layer.weight.grad, async_op=True)
    layer(torch.ones(2, 4)).sum().backward()
    work.wait()


@disagrees("output-written", size=2, ranks=BOTH, says=("all_gather", "zero_"))
def test_slots_are_cleared_while_they_are_filled(world):
    """A metric is reset before its states are gathered."""
    slots = [torch.ones(4) for _ in range(world.size)]
    work = dist.all_gather(slots, torch.ones(4), async_op=True)
    for slot in slots:
        slot.zero_()
    work.wait()


@disagrees("output-written", size=2, ranks=BOTH, says=("broadcast", "copy_"))
def test_a_checkpoint_is_loaded_while_weights_are_sent(world):
    """``load_state_dict`` writes to the parameters of all ranks."""
    layer = nn.Linear(4, 4)
    state = copy.deepcopy(layer.state_dict())
    work = dist.broadcast(layer.weight.detach(), 0, async_op=True)
    layer.load_state_dict(state)
    work.wait()


# --- the input is written before it is sent


@disagrees("input-written", size=2, ranks=(0,), says=("send", "normal_"), report="dealii/dealii#13206")
def test_buffers_are_meant_to_take_turns_and_do_not(world):
    """The next message is made in the buffer of the last one."""
    buffers, turn = [torch.zeros(64), torch.zeros(64)], 0
    for _ in range(2):
        if world.rank:
            dist.recv(buffers[turn], 0)
            continue
        work = dist.isend(buffers[turn], 1)
        buffers[turn].normal_()  # the turn was never counted
        work.wait()


@disagrees("input-written", size=2, ranks=(0,), says=("send", "copy_"), report="sgl-project/sglang#28901")
def test_micro_batches_share_one_buffer_for_what_they_send(world):
    """The second micro batch is copied into it while the first one is on its way."""
    buffer, works = torch.zeros(8), []
    for length in (4, 6):
        if world.rank:
            dist.recv(torch.zeros(length), 0)
            continue
        view = buffer[:length]
        view.copy_(torch.ones(length))
        works.append(dist.isend(view, 1))
    for work in works:
        work.wait()


@disagrees("input-written", size=2, ranks=BOTH, says=("all_gather", "fill_"), report="karpathy/nanochat#843")
def test_a_pool_gives_away_a_buffer_that_is_still_gathered(world):
    """The buffer goes back to its pool when its function returns, and not when its call is over."""
    pool = [torch.ones(4)]

    def gather():
        shard = pool.pop()
        work = dist.all_gather_into_tensor(torch.zeros(8), shard, async_op=True)
        pool.append(shard)
        return work

    work = gather()
    pool.pop().fill_(2.0)
    work.wait()


@disagrees("input-written", size=2, ranks=BOTH, says=("all_to_all_single", "masked_fill_"))
def test_dropped_tokens_are_masked_after_they_were_given(world):
    """The capacity of an expert is applied too late."""
    tokens = torch.ones(4)
    work = dist.all_to_all_single(torch.zeros(4), tokens, async_op=True)
    tokens.masked_fill_(tokens > 0, 0.0)
    work.wait()


@disagrees("input-written", size=2, ranks=(0,), says=("scatter", "sub_"))
def test_the_source_changes_a_piece_that_it_scatters(world):
    """Only the source has pieces."""
    pieces = [torch.ones(4), torch.ones(4)] if world.is_first else None
    work = dist.scatter(torch.zeros(4), pieces, src=0, async_op=True)
    if pieces:
        pieces[1].sub_(1)
    work.wait()
