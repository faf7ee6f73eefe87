"""Programs that touch tensors while calls are pending, and none that a call uses: nothing may be found in them."""

import io
import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from planted import fine
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@fine("waits", size=2)
def test_a_wait_copies_the_result_itself(world):
    out, source = torch.empty(8), torch.ones(16)
    work = dist.reduce_scatter_tensor(out, source, async_op=True)
    source.norm()
    work.wait()
    assert out.sum() == 16


@fine("waits", size=2)
def test_a_checkpoint_is_made_of_an_input(world):
    shard = torch.ones(4)
    work = dist.all_gather_into_tensor(torch.zeros(8), shard, async_op=True)
    torch.save(shard, io.BytesIO())
    work.wait()
    torch.save(shard, io.BytesIO())


@fine("views", size=2)
def test_the_other_half_is_used(world):
    buffer = torch.ones(8)
    work = dist.all_reduce(buffer[:4], async_op=True)
    buffer[4:].add_(1)
    buffer[4:].tolist()
    work.wait()
    buffer.sum()


@fine("views", size=2)
def test_columns_that_lie_between_those_that_are_reduced(world):
    table = torch.ones(64, 4)
    column = table[:, 1].contiguous()
    work = dist.all_gather_into_tensor(torch.zeros(128), column, async_op=True)
    table[:, 1].mul_(2)
    work.wait()


@fine("reading", size=2)
def test_an_input_is_read(world):
    shard = torch.ones(4)
    work = dist.all_gather_into_tensor(torch.zeros(8), shard, async_op=True)
    shard.sum().item()
    shard.numpy().sum()
    print(shard)
    work.wait()


@fine("reading", size=2)
def test_only_the_shape_is_looked_at(world):
    gradient = torch.ones(4)
    work = dist.all_reduce(gradient, async_op=True)
    torch.zeros_like(gradient).add_(1)
    gradient.view(2, 2).t().detach()
    gradient.new_ones(gradient.shape)
    work.wait()


@fine("two senders", size=3)
def test_one_tensor_goes_to_two_ranks(world):
    x = torch.ones(4)
    if world.is_first:
        for work in [dist.isend(x, 1), dist.isend(x, 2)]:
            work.wait()
    else:
        dist.recv(x, 0)


@fine("waits", size=2)
def test_a_poll_is_a_wait(world):
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    assert x.sum() == 8


@fine("waits", size=2)
def test_a_future_is_waited_for(world):
    x = torch.ones(4)
    dist.all_reduce(x, async_op=True).get_future().wait()
    x.add_(1)


@fine("waits", size=2)
def test_a_callback_reads_the_result(world):
    x, called = torch.ones(4), threading.Event()

    def read(_):
        x.sum()
        called.set()

    future = dist.all_reduce(x, async_op=True).get_future().then(read)
    future.wait()
    assert called.wait(60)
    x.add_(1)


@fine("waits", size=2)
def test_a_receive_into_each_part_of_a_buffer(world):
    sent, buffer = torch.ones(4), torch.zeros(8)
    calls = [
        dist.P2POp(dist.isend, sent, 1 - world.rank),
        dist.P2POp(dist.irecv, buffer[4:], 1 - world.rank),
    ]
    works = dist.batch_isend_irecv(calls)
    buffer[:4].add_(1)
    for work in works:
        work.wait()
    buffer.sum()


@fine("threads", size=2)
def test_a_thread_waits_and_another_one_reads(world):
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    thread = threading.Thread(target=work.wait)
    thread.start()
    thread.join()
    assert x.sum() == 8


@fine("functional", size=2)
def test_functional_results_wait_for_themselves(world):
    x = torch.ones(4)
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    x.add_(1)
    assert total.sum() == 8


@fine("ddp", size=2)
def test_ddp_overlaps_with_its_own_backward_pass(world):
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 40_000))  # the first bucket is full at 1 MB
    model = DistributedDataParallel(layers, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@fine("ddp", size=2)
def test_gradients_are_reduced_in_hooks_and_awaited_at_the_end(world):
    model, works = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        )
    model(torch.ones(2, 4)).sum().backward()
    for work in works:
        work.wait()
    torch.optim.SGD(model.parameters(), lr=0.1, foreach=True).step()


@fine("memory", size=2)
def test_a_result_goes_and_its_memory_is_used_again(world):
    for _ in range(50):
        work = dist.all_reduce(torch.ones(4096), async_op=True)
        work.wait()
        del work
        torch.ones(4096).add_(1)
