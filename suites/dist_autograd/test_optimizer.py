"""The distributed optimiser: parameters on every rank, one step for all, equal to the local optimiser."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.testing import assert_close

from disttest.testing import World

from ..private import private
from ..ranks import meet
from ..rpc.agents import worker

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]


class Layer:
    """A parameter on its rank."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.rand(3, 3, generator=generator))

    def forward(self, tensor: Tensor) -> Tensor:
        """Multiply."""
        return torch.mm(self.weight, tensor)

    def reference(self) -> Any:
        """To the parameter, for the optimiser."""
        return rpc.RRef(self.weight)

    def value(self) -> Tensor:
        """Its current value."""
        return self.weight.detach()


def _fail_on_purpose(self: Any, *args: Any) -> None:
    raise ValueError("no step on purpose")


class FailingOptimizer(torch.optim.SGD):
    """Refuses its step."""

    step = _fail_on_purpose  # type: ignore[assignment]


def _optimizer(kind: Any, references: list[Any], **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript, which it uses inside, is deprecated
        return private("torch.distributed.optim.DistributedOptimizer")(kind, references, **kwargs)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 0.1}),
        (torch.optim.Adagrad, {"lr": 0.1}),
    ],
)
def test_steps_equal_those_of_one_process(agents: World, kind: Any, options: dict[str, float]) -> None:
    """Three steps over two layers, one here and one on another rank, give the parameters of the same steps in one process."""
    here = [Layer(agents.rank * 10 + place) for place in (0, 1)]
    there = [worker((agents.rank + step) % agents.size) for step in (0, 1)]
    layers = [rpc.remote(to, Layer, args=(agents.rank * 10 + place,)) for place, to in enumerate(there)]
    references = [layer.remote().reference().to_here() for layer in layers]
    local = kind([layer.weight for layer in here], **options)
    distributed = _optimizer(kind, references, **options)
    tensor = torch.rand(3, 3, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        local.zero_grad()
        here[1].forward(here[0].forward(tensor)).sum().backward()
        local.step()
        with dist_autograd.context() as identity:
            value = layers[1].rpc_sync().forward(layers[0].rpc_sync().forward(tensor))
            dist_autograd.backward(identity, [value.sum()])
            distributed.step(identity)
    for layer, expected in zip(layers, here, strict=True):
        assert_close(layer.rpc_sync().value(), expected.value())
    meet(agents)
    del layers, references, distributed, layer


def test_step_that_fails_says_why(agents: World) -> None:
    """The exception of the optimiser on the other rank is raised by ``step``, with its text."""
    layer = rpc.remote(worker((agents.rank + 1) % agents.size), Layer, args=(1,))
    reference = layer.remote().reference().to_here()
    distributed = _optimizer(FailingOptimizer, [reference], lr=0.1)
    with dist_autograd.context() as identity:
        dist_autograd.backward(identity, [layer.rpc_sync().forward(torch.rand(3, 3)).sum()])
        with pytest.raises(Exception, match="no step on purpose"):
            distributed.step(identity)
    meet(agents)
    del layer, reference, distributed
