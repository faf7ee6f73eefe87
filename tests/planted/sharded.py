"""Layers whose weights or tokens are spread over the ranks, for the planted programs of values."""

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 4


def seeded_apart(world):
    """Shards are made from a seed of each rank."""
    torch.manual_seed(10 + world.rank)


def seeded_alike():
    """Replicas are made from one seed."""
    torch.manual_seed(1)


class Copy(torch.autograd.Function):
    """The same on all ranks; its gradient is summed over them."""

    @staticmethod
    def forward(_ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient is the same on all of them."""

    @staticmethod
    def forward(_ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_ctx, gradient):
        return gradient


def gathered(x, group):
    out = x.new_empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def scattered(x, group):
    out = x.new_empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


class Gather(torch.autograd.Function):
    """The rows of all ranks; each rank gets the gradient of its own, summed over them."""

    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient, ctx.group), None


class Scatter(torch.autograd.Function):
    """Each rank's rows of the sum over the ranks."""

    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient, ctx.group), None


class Travel(torch.autograd.Function):
    """The rows that each rank has for this one; the gradient goes the same way back."""

    @staticmethod
    def forward(_ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(_ctx, gradient):
        return Travel.apply(gradient)


def linear(rows, columns, *, bias=True):
    """A layer of this rank's own numbers; its bias is zero at first."""
    layer = nn.Linear(rows, columns, bias=bias)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class TensorParallel(nn.Module):
    """A block with a norm before and behind it: all ranks have all tokens, and a part of the weights."""

    def __init__(self, *, forgets=False):
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.column = linear(WIDTH, WIDTH)
        self.row = linear(WIDTH, WIDTH, bias=False)
        self.forgets = forgets

    def forward(self, x):
        x = self.before(x)
        inside = self.column(x if self.forgets else Copy.apply(x)).relu()
        return self.behind(x + Sum.apply(self.row(inside)))


class Row(nn.Module):
    """A layer that sums the parts of all ranks, and gives each its rows; all have one bias."""

    def __init__(self, group, *, bias):
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if bias else None

    def forward(self, x):
        rows = Scatter.apply(x @ self.weight.t(), self.group)
        return rows if self.bias is None else rows + self.bias


class SequenceParallel(nn.Module):
    """The same, with a part of the tokens outside of the weights."""

    def __init__(self, group=None, *, bias=False):
        super().__init__()
        self.group = group
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.column, self.row = linear(WIDTH, WIDTH), Row(group, bias=bias)

    def forward(self, x):
        inside = self.column(Gather.apply(self.before(x), self.group)).relu()
        return self.behind(x + self.row(inside))


def reduce_norms(model, names=("before", "behind")):
    """Sum the gradients of these norms over the ranks."""
    for name, parameter in model.named_parameters():
        if name.split(".")[-2] in names:
            dist.all_reduce(parameter.grad)
