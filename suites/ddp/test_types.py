"""Inputs and outputs of forward: containers keep their type, values their meaning, and hooks their place."""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import pytest
import torch
from torch import nn

from disttest.testing.world import World

from ..ranks import exchange, meet
from .models import DOUBLE, WIDTH, Apply, linear
from .training import assert_gradients_equal, batches, share, twin, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]

Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024  # the functional form is one of the two kinds under test


class TypedPair(NamedTuple):
    """The class form of a named tuple."""

    a: torch.Tensor
    b: torch.Tensor


class Parcel:
    """A class that DDP knows nothing of."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


_KINDS = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"a": a, "b": b},
    "namedtuple": Pair,
    "NamedTuple": TypedPair,
}


def _values(container: object) -> list[torch.Tensor]:
    return list(container.values()) if isinstance(container, dict) else list(container)


@pytest.mark.covers("CD-255", "CD-256")
@pytest.mark.parametrize("kind", list(_KINDS))
def test_inputs_keep_their_type(world: World, kind: str) -> None:
    """A container reaches forward with its type and values, its tensors on the rank's device."""
    seen: list[object] = []

    def forward(layer: nn.Module, container: object) -> torch.Tensor:
        seen.append(container)
        a, b = _values(container)
        return layer(a + b)

    together = wrap(world, Apply(forward))
    a, b = torch.randn(2, 2, WIDTH, dtype=DOUBLE)
    sent = _KINDS[kind](a, b)
    together(sent).sum().backward()
    together(container=sent).sum().backward()
    for got in seen:
        assert type(got) is type(sent)
        assert getattr(got, "_fields", ()) == getattr(sent, "_fields", ())
        for value, original in zip(_values(got), (a, b), strict=True):
            assert value.device == world.device
            assert torch.equal(value.cpu(), original)


@pytest.mark.covers("CD-255")
def test_own_classes_are_passed_through(world: World) -> None:
    """A tensor inside a class of the user's is left where it is."""
    seen: list[Parcel] = []

    def forward(layer: nn.Module, parcel: Parcel) -> torch.Tensor:
        seen.append(parcel)
        return layer(parcel.tensor.to(world.device))

    parcel = Parcel(torch.ones(1, WIDTH, dtype=DOUBLE))
    wrap(world, Apply(forward))(parcel)
    assert seen[0].tensor.device == torch.device("cpu")
    assert torch.equal(seen[0].tensor, parcel.tensor)


@pytest.mark.covers("CD-257")
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("search", [False, True], ids=["all-used", "search"])
def test_output_without_gradient(world: World, search: bool, static: bool) -> None:
    """An output that requires no gradient stays so, next to one that does."""
    together = wrap(
        world,
        Apply(lambda layer, x: (layer(x), layer(x).detach(), {"inner": torch.ones(2)})),
        find_unused_parameters=search,
        static_graph=static,
    )
    for batch in batches(world, 3):
        trained, detached, plain = together(share(world, batch))
        assert trained.requires_grad
        assert not detached.requires_grad
        assert not plain["inner"].requires_grad
        trained.sum().backward()


@pytest.mark.covers("CD-258", "CD-259")
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_tensors_made_in_forward(world: World, static: bool) -> None:
    """Tensors that forward makes come out without a ``grad_fn``, directly or in a dict."""

    def forward(layer: nn.Module, x: torch.Tensor) -> tuple[object, ...]:
        return layer(x), {"fresh": torch.zeros(2, requires_grad=True)}, torch.zeros(2)

    together = wrap(world, Apply(forward), static_graph=static)
    for batch in batches(world, 3):
        out, held, direct = together(share(world, batch))
        assert direct.grad_fn is None
        assert not direct.requires_grad
        if not static:
            assert held["fresh"].grad_fn is None
        out.mean().backward()


@pytest.mark.covers("CD-260")
def test_inference_on_one_rank(world: World) -> None:
    """Without buffers to synchronise, one rank alone can run forward in eval mode, six times."""
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    together = wrap(world, model).eval()
    alone = twin(world, model).eval()
    if world.is_first:
        for batch in batches(world, 6):
            with torch.no_grad():
                torch.testing.assert_close(together(batch), alone(batch))
    meet(world)


@pytest.mark.covers("CD-261")
def test_module_hooks(world: World) -> None:
    """Forward-pre, forward and backward hooks inside DDP act as they do in one process."""
    model = nn.Sequential(linear(), linear())
    model[0].register_forward_pre_hook(lambda _module, args: (args[0] * 2,))
    model[0].register_forward_hook(lambda _module, _args, out: out.relu())
    model[1].register_full_backward_hook(lambda _module, grads, _out: tuple(g * 3 for g in grads))
    alone, together = twin(world, model), wrap(world, model)
    for batch in batches(world, 2):
        torch.testing.assert_close(together(share(world, batch)), alone(share(world, batch)))
        together.zero_grad()
        alone.zero_grad()
        together(share(world, batch)).square().mean().backward()
        alone(batch).square().mean().backward()
        assert_gradients_equal(together, alone)


@pytest.mark.covers("CD-262")
def test_functional_call(world: World) -> None:
    """``torch.func.functional_call`` uses the tensors it is given: gradients land on them, and the module is untouched."""
    together = wrap(world, linear(1, 1, bias=True))
    before = {name: parameter.detach().clone() for name, parameter in together.named_parameters()}
    given = {
        "module.weight": torch.tensor([[3.0]], dtype=DOUBLE, device=world.device, requires_grad=True),
        "module.bias": torch.tensor([5.0], dtype=DOUBLE, device=world.device, requires_grad=True),
    }
    x = torch.full((1, 1), 2.0, dtype=DOUBLE, device=world.device)
    out = torch.func.functional_call(together, given, x)
    assert out.item() == 11.0
    out.backward()
    assert [given["module.weight"].grad.item(), given["module.bias"].grad.item()] == [2.0, 1.0]
    for name, parameter in together.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-284")
@pytest.mark.parametrize("clones", [True, False], ids=["clone", "no-clone"])
def test_sink_without_clone(world: World, clones: bool) -> None:
    """After ``_set_ddp_sink_clone(False)`` forward and backward clone nothing; by default they do."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Clones(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func is torch.ops.aten.clone.default
            return func(*args, **kwargs or {})

    together = wrap(world, linear(), find_unused_parameters=True)
    together._set_ddp_sink_clone(clones)
    with Clones() as seen:
        together(share(world, batches(world, 1)[0])).sum().backward()
    assert (seen.count > 0) == clones
    assert len(set(exchange(world, seen.count))) == 1
