"""Communication hooks of our own. DDP checks their annotations at registration, so these are evaluated ones."""

import torch
import torch.distributed as dist

Reduced = torch.futures.Future[torch.Tensor]


def divide_first(group: object, bucket: dist.GradBucket) -> Reduced:
    """Divide, then all-reduce; the future carries the bucket's tensor."""
    tensor = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])


def chained(group: object, bucket: dist.GradBucket) -> Reduced:
    """All-reduce, then two callbacks: times two, then by twice the number of ranks."""
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    doubled = future.then(lambda done: 2 * done.value()[0])
    return doubled.then(lambda done: done.value() / (2 * dist.get_world_size()))
