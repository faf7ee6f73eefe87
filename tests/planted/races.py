"""Programs that touch a tensor while a call uses it, and which pass over gloo all the same: each with what must be found in it.

Where a report is named, the program has what its author describes, never its code.
"""

import io
import threading

import torch
import torch.distributed as dist
from planted import disagrees
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BOTH = (0, 1)


def numbers(count=1024):
    return torch.ones(count)


# --- the result is read before it is there


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "sum"), report="unslothai/unsloth-zoo#967")
def test_a_loss_is_summed_before_it_is_reduced(world):
    loss = numbers()
    work = dist.all_reduce(loss, async_op=True)
    loss.sum()
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "div"), report="NVIDIA/Megatron-LM#7452")
def test_a_mean_is_taken_of_a_sum_that_is_under_way(world):
    gradient = numbers()
    work = dist.all_reduce(gradient, async_op=True)
    mean = gradient / world.size
    work.wait()
    assert mean.shape == gradient.shape


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "_local_scalar_dense"))
def test_a_loss_is_logged_before_it_is_reduced(world):
    loss = torch.ones(1)
    work = dist.all_reduce(loss, async_op=True)
    loss.item()
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "tolist"))
def test_a_list_is_made_of_what_is_on_its_way(world):
    losses = numbers(4)
    work = dist.all_reduce(losses, async_op=True)
    losses.tolist()
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "pickle"))
def test_a_checkpoint_is_made_of_what_is_on_its_way(world):
    weights = numbers()
    work = dist.all_reduce(weights, async_op=True)
    torch.save({"weights": weights}, io.BytesIO())
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "pickle"))
def test_an_object_is_gathered_with_what_is_on_its_way(world):
    losses = numbers(4)
    work = dist.all_reduce(losses, async_op=True)
    dist.all_gather_object([None, None], {"losses": losses})
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("reduce", "numpy"))
def test_numpy_gets_what_is_on_its_way(world):
    weights = numbers()
    work = dist.all_reduce(numbers(4), async_op=True)
    other = dist.reduce(weights, 0, async_op=True)
    weights.numpy().sum()
    other.wait()
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "__repr__"))
def test_what_is_on_its_way_is_printed(world):
    loss = torch.ones(1)
    work = dist.all_reduce(loss, async_op=True)
    print(loss)
    work.wait()


@disagrees("output-read", size=2, ranks=(1,), says=("recv", "mm"), report="pytorch/torchtitan#4064")
def test_a_stage_begins_with_activations_that_come_later(world):
    if world.is_first:
        dist.send(torch.ones(8, 8), 1)
    else:
        activations = torch.zeros(8, 8)
        work = dist.irecv(activations, 0)
        activations @ torch.ones(8, 8)
        work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_gather", "cat"), report="NVIDIA/Megatron-LM#6610")
def test_shards_are_put_together_before_they_are_there(world):
    shards = [torch.zeros(4) for _ in range(world.size)]
    work = dist.all_gather(shards, numbers(4), async_op=True)
    whole = torch.cat(shards)
    work.wait()
    assert whole.numel() == 8


@disagrees(
    "output-read", size=2, ranks=BOTH, says=("all_gather_into_tensor", "mul"), report="pytorch/pytorch#168973"
)
def test_a_view_of_a_gathered_parameter_is_used_early(world):
    whole = torch.zeros(8)
    work = dist.all_gather_into_tensor(whole, numbers(4), async_op=True)
    whole[4:] * 2
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("reduce_scatter_tensor", "_foreach_mul"))
def test_a_shard_is_scaled_into_another_before_it_is_reduced(world):
    shard = torch.zeros(4)
    work = dist.reduce_scatter_tensor(shard, numbers(8), async_op=True)
    torch._foreach_mul([shard], 0.5)
    work.wait()


@disagrees(
    "output-read",
    size=2,
    ranks=BOTH,
    says=("all_to_all_single", "index"),
    report="meta-pytorch/torchrec#4149",
)
def test_tokens_are_picked_before_they_are_exchanged(world):
    tokens = torch.zeros(8)
    work = dist.all_to_all_single(tokens, numbers(8), async_op=True)
    tokens[torch.tensor([0, 3])]
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "clone"))
def test_only_the_last_of_several_is_waited_for(world):
    gradients = [numbers() for _ in range(3)]
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    works[-1].wait()
    gradients[0].clone()
    works[0].wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "another thread"))
def test_another_thread_logs_what_is_on_its_way(world):
    loss, reads = numbers(4), threading.Event()

    def log():
        reads.wait()
        loss.mean()

    thread = threading.Thread(target=log)
    thread.start()
    work = dist.all_reduce(loss, async_op=True)
    reads.set()
    thread.join()
    work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says=("all_reduce", "mul"), report="pytorch/pytorch#174844")
def test_a_forward_pass_uses_weights_that_are_being_averaged(world):
    model = nn.Linear(4, 4)
    works = [dist.all_reduce(p.data, async_op=True) for p in model.parameters()]
    model.weight * 2
    for work in works:
        work.wait()


@disagrees("output-read", size=2, ranks=BOTH, says="all_reduce", report="pytorch/pytorch#108378")
def test_a_backward_pass_goes_on_with_a_gradient_that_is_being_reduced(world):
    works = []

    def reduce(gradient):
        works.append(dist.all_reduce(gradient, async_op=True))

    x = torch.ones(4, requires_grad=True)
    y = x * 2
    y.register_hook(reduce)
    (y * y).sum().backward()
    for work in works:
        work.wait()


# --- the result is written before it is there


@disagrees(
    "output-written", size=2, ranks=BOTH, says=("all_reduce", "div_"), report="NVIDIA/Megatron-LM#7452"
)
def test_a_gradient_is_scaled_while_it_is_reduced(world):
    gradient = numbers()
    work = dist.all_reduce(gradient, async_op=True)
    gradient.div_(world.size)
    work.wait()


@disagrees(
    "output-written", size=2, ranks=BOTH, says=("all_reduce", "zero_"), report="sgl-project/sglang#12623"
)
def test_gradients_are_zeroed_while_they_are_reduced(world):
    parameter = nn.Parameter(numbers(4))
    parameter.grad = numbers(4)
    work = dist.all_reduce(parameter.grad, async_op=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.zero_grad(set_to_none=False)
    work.wait()


@disagrees("output-written", size=2, ranks=(1,), says=("broadcast", "copy_"))
def test_a_checkpoint_is_loaded_into_what_is_received(world):
    weights = numbers()
    work = dist.broadcast(weights, 0, async_op=True)
    if world.rank == 1:
        weights.copy_(torch.zeros(1024))
    work.wait()


@disagrees("output-written", size=2, ranks=BOTH, says=("all_reduce", "add"))
def test_the_result_of_a_sum_goes_where_another_one_goes(world):
    total = numbers(4)
    work = dist.all_reduce(total, async_op=True)
    torch.add(numbers(4), 1, out=total)
    work.wait()


@disagrees("output-written", size=2, ranks=BOTH, says=("all_reduce", "#1"), report="pytorch/pytorch#191437")
def test_a_buffer_is_reduced_twice_at_once(world):
    buffer = numbers(4)
    first = dist.all_reduce(buffer, async_op=True)
    second = dist.all_reduce(buffer, async_op=True)
    first.wait()
    second.wait()


@disagrees(
    "output-written", size=2, ranks=BOTH, says=("all_reduce", "sgd"), report="unslothai/unsloth-zoo#967"
)
def test_a_fused_step_updates_what_is_averaged(world):
    parameter = nn.Parameter(numbers(4))
    parameter.grad = numbers(4)
    work = dist.all_reduce(parameter.data, async_op=True)
    torch.optim.SGD([parameter], lr=0.1, fused=True).step()
    work.wait()


@disagrees("output-written", size=2, ranks=BOTH, says=("all_reduce", "mul_"))
def test_every_other_element_is_written(world):
    buffer = numbers(8)
    work = dist.all_reduce(buffer, async_op=True)
    buffer[::2].mul_(3)
    work.wait()


# --- the input is written before it is sent


@disagrees("input-written", size=2, ranks=(0,), says=("send", "add_"), report="vllm-project/vllm#44428")
def test_a_buffer_is_reused_before_it_is_sent(world):
    if world.is_first:
        buffer = numbers()
        work = dist.isend(buffer, 1)
        buffer.add_(1)
        work.wait()
    else:
        dist.recv(torch.zeros(1024), 0)


@disagrees(
    "input-written",
    size=2,
    ranks=BOTH,
    says=("all_gather", "_foreach_add_"),
    report="NVIDIA/Megatron-LM#6610",
)
def test_a_step_changes_the_shard_that_is_gathered(world):
    shard = nn.Parameter(numbers(4))
    shard.grad = numbers(4)
    optimizer = torch.optim.SGD([shard], lr=0.1, foreach=True)
    work = dist.all_gather_into_tensor(torch.zeros(8), shard.data, async_op=True)
    optimizer.step()
    work.wait()


@disagrees("input-written", size=2, ranks=BOTH, says=("all_gather", "numpy"))
def test_numpy_writes_what_is_gathered(world):
    shard = numbers(4)
    work = dist.all_gather_into_tensor(torch.zeros(8), shard, async_op=True)
    shard.numpy()[0] = 7
    work.wait()


@disagrees("input-written", size=2, ranks=BOTH, says=("reduce_scatter_tensor", "fill_"))
def test_the_next_batch_comes_into_the_buffer_of_the_last(world):
    batch = numbers(8)
    work = dist.reduce_scatter_tensor(torch.zeros(4), batch, async_op=True)
    batch.fill_(2)
    work.wait()


@disagrees("input-written", size=2, ranks=BOTH, says=("send", "recv"), report="pytorch/pytorch#168973")
def test_a_ring_sends_from_where_it_receives(world):
    buffer, other = numbers(), 1 - world.rank
    calls = [dist.P2POp(dist.isend, buffer, other), dist.P2POp(dist.irecv, buffer, other)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()


@disagrees("input-written", size=2, ranks=BOTH, says=("all_gather", "copy_", "another thread"))
def test_another_thread_refills_what_is_gathered(world):
    shard, refills = numbers(4), threading.Event()

    def refill():
        refills.wait()
        shard.copy_(torch.zeros(4))

    thread = threading.Thread(target=refill)
    thread.start()
    work = dist.all_gather_into_tensor(torch.zeros(8), shard, async_op=True)
    refills.set()
    thread.join()
    work.wait()


# --- the memory goes


@disagrees(
    "storage-freed", size=2, ranks=BOTH, says=("all_gather", "resize_"), report="sgl-project/sglang#12623"
)
def test_a_parameter_is_freed_while_it_is_gathered(world):
    shard = numbers(4)
    work = dist.all_gather_into_tensor(torch.zeros(8), shard, async_op=True)
    work.get_future().done()
    storage = numbers(4).untyped_storage()
    storage.resize_(0)
    freed = dist.all_gather_into_tensor(torch.zeros(8), shard, async_op=True)
    dist.barrier()
    shard.untyped_storage().resize_(0)
    freed.wait()
    work.wait()


# --- C++ has issued it


@disagrees(
    "output-written",
    size=2,
    ranks=BOTH,
    says=("all_reduce", "mul_"),
    report="Lightning-AI/pytorch-lightning#15195",
)
def test_a_hook_changes_a_bucket_that_is_being_reduced(world):
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 70_000))  # the first bucket is full at 1 MB
    model = DistributedDataParallel(layers, gradient_as_bucket_view=True)
    first, last = layers
    model(torch.ones(2, 4)).sum().backward()

    def scale(gradient):
        if last.weight.grad is not None:
            with torch.no_grad():
                last.weight.grad.mul_(2)
                last.bias.grad.mul_(2)

    first.weight.register_hook(scale)
    model(torch.ones(2, 4)).sum().backward()
