"""Compiled FSDP (1 and 2): outputs, graph inputs, guards."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing import assert_close

from disttest.testing import World

from ..private import private
from . import shim
from .models import Encoder, Graphs, Toy, seeded, tokens, toy_input

pytestmark = [pytest.mark.world_size(1, 2), pytest.mark.backend("gloo"), pytest.mark.device("cpu")]


def _fsdp(world: World, model: nn.Module, wrap: Any = None, **kwargs: Any) -> FullyShardedDataParallel:
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=wrap) if wrap else None
    kwargs = {"use_orig_params": True, **kwargs}
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=world.device, **kwargs)


class Inner(nn.Module):
    """A part that is checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.layers(tensor)


class Outer(nn.Module):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Inner(), nn.ReLU(), Inner(), nn.ReLU())

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.layers(tensor)


def _checkpointed(model: nn.Module, kind: type[nn.Module]) -> nn.Module:
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=functools.partial(
            checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT
        ),
        check_fn=lambda module: isinstance(module, kind),
    )
    return model


@pytest.mark.covers("DY-12", "DY-N02", "DY-32")
@pytest.mark.parametrize("use_orig_params", [True, False])
@pytest.mark.parametrize("wrap", [None, {nn.Linear}], ids=["root", "nested"])
def test_compiled_fsdp_gives_what_eager_gives(world: World, wrap: Any, use_orig_params: bool) -> None:
    """The compiled wrapped model's output is that of the plain model."""
    model, value = seeded(Toy, 50), toy_input()
    expected = model(value)
    wrapped = _fsdp(world, copy.deepcopy(model), wrap, use_orig_params=use_orig_params)
    assert_close(torch.compile(wrapped, backend="aot_eager")(value), expected)


@pytest.mark.covers("DY-16", "DY-17", "DY-H08")
@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("wrap", [None, {nn.TransformerEncoderLayer}], ids=["root", "nested"])
def test_compiled_encoder_trains_like_eager_fsdp(world: World, wrap: Any, checkpointed: bool) -> None:
    """Loss, logits and gradients of one compiled step are those of the same step in eager FSDP."""
    results = []
    for backend in (None, "aot_eager"):
        model = _fsdp(world, seeded(Encoder), wrap)
        if checkpointed:
            _checkpointed(model, nn.TransformerEncoderLayer)
        call = torch.compile(model, backend=backend) if backend else model
        loss, logits = call(*tokens(world.rank))
        loss.backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        assert grads
        results.append((loss, logits, grads))
    assert_close(results[1], results[0])


@pytest.mark.parametrize("wrap", ["blocks", "root"])
def test_compiled_fully_sharded_model_trains_like_eager(world: World, wrap: str) -> None:
    """Loss, logits and whole gradients of one compiled FSDP2 step are those of the eager step."""
    results = []
    for backend in (None, "aot_eager"):
        model = seeded(Encoder)
        if wrap == "blocks":
            for layer in model.layers:
                fully_shard(layer)
        fully_shard(model)
        call = torch.compile(model, backend=backend) if backend else model
        loss, logits = call(*tokens(world.rank))
        loss.backward()
        results.append((loss, logits, [p.grad.full_tensor() for p in model.parameters()]))
    assert_close(results[1], results[0])


@pytest.mark.covers("DY-15", "DY-H06", "DY-H07")
def test_checkpoint_is_one_node_of_the_graph(world: World) -> None:
    """Two checkpointed parts compile to two graphs; the first holds the checkpoint as an operator, and the output is right."""
    value = torch.rand(100, 100)
    model = seeded(Outer)
    wrapped = _checkpointed(_fsdp(world, copy.deepcopy(model), {Inner}), Inner)
    graphs = Graphs()
    assert_close(torch.compile(wrapped, backend=graphs)(value), model(value))
    assert len(graphs) == 2
    tag = private("torch._higher_order_ops.wrap.tag_activation_checkpoint")
    assert any(node.target is tag for node in graphs.graphs[0].graph.nodes)


@pytest.mark.covers("DY-13", "DY-H05")
def test_attribute_set_in_forward(world: World) -> None:
    """The attribute has its new value afterwards, the output is eager's, and the only graph break is not due to it."""

    class Mutating(Toy):
        state = 1

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            self.state = 2
            return self.net(tensor) * self.state

    model, value = seeded(Mutating, 50), toy_input()
    expected = model(value)
    wrapped = _fsdp(world, seeded(Mutating, 50))
    assert_close(torch.compile(wrapped, backend="aot_eager")(value), expected)
    assert wrapped.module.state == 2
    breaks = shim.graph_breaks()
    assert len(breaks) == 1
    assert not any("_is_root" in reason or "`state`" in reason for reason in breaks)


@pytest.mark.world_size(1)
@pytest.mark.covers("DY-33")
@pytest.mark.parametrize(
    ("skip", "source"), [(True, "local_fsdp_module"), (False, "local_unspecialized_nn_module")]
)
def test_guards_on_the_wrapped_module(world: World, skip: bool, source: str) -> None:
    """Every guard on the inner module has the source that ``skip_fsdp_guards`` decides on."""
    import io

    comptime = private("torch._dynamo.comptime.comptime")
    written = io.StringIO()
    globals()["_written"] = written

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(10, 10), nn.ReLU())

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            result = self.net(tensor)

            @comptime
            def _(ctx: Any) -> None:
                ctx.print_guards(file=_written)  # noqa: F821

            return result

    model, value = seeded(Looking), toy_input()
    with shim.config(skip_fsdp_guards=skip):
        output = torch.compile(_fsdp(world, model), backend="aot_eager")(value)
    assert_close(output, model(value))
    lines = [line for line in written.getvalue().splitlines() if "_modules['net']" in line]
    assert lines, written.getvalue()
    assert all(line.strip().startswith(f"{source} ") for line in lines), lines


@pytest.mark.world_size(1)
@pytest.mark.covers("DY-34")
def test_parameters_are_inputs_of_the_graph(world: World) -> None:
    """The graph has nine inputs, eight parameters and the tensor, and no attributes; its output is the plain model's."""
    model, value = seeded(Toy, 50), toy_input()
    graphs = Graphs()
    assert_close(torch.compile(_fsdp(world, copy.deepcopy(model)), backend=graphs)(value), model(value))
    assert graphs.nodes("get_attr") == []
    assert len(graphs.nodes("placeholder")) == 9


@pytest.mark.world_size(1)
@pytest.mark.covers("DY-35")
def test_tensor_used_twice_is_one_input(world: World) -> None:
    """An attribute and a buffer, each used twice, are one graph input each, in addition to the argument."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.randn(3, 3)
            self.register_buffer("buffer", torch.randn(3, 3))

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor * self.plain + self.plain * self.buffer + self.buffer

    model, value = seeded(Twice), torch.rand(3, 3)
    graphs = Graphs()
    assert_close(torch.compile(_fsdp(world, copy.deepcopy(model)), backend=graphs)(value), model(value))
    assert len(graphs.nodes("placeholder")) == 3


@pytest.mark.world_size(1)
@pytest.mark.covers("DY-36")
def test_buffer_under_two_names_is_not_guarded_apart(world: World) -> None:
    """A buffer that two modules share and one changes in place costs one compilation for 15 calls, and counts them all."""

    class Holder(nn.Module):
        def __init__(self, buffer: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("buffer", buffer)

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            self.buffer.add_(1)
            return tensor + self.buffer

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("own", torch.zeros(3))
            self.holder = Holder(self.own)

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return self.holder(tensor) + self.own

    model, wrapped = Shared(), _fsdp(world, Shared())
    graphs = Graphs()
    compiled = torch.compile(wrapped, backend=graphs)
    for _ in range(15):
        assert_close(compiled(torch.ones(3)), model(torch.ones(3)))
    assert len(graphs) == 1
    assert_close(wrapped.module.own, torch.full((3,), 15.0))


@pytest.mark.world_size(1)
@pytest.mark.covers("DY-37")
@pytest.mark.parametrize("through", ["instance", "class"])
def test_static_method(world: World, through: str) -> None:
    """A static method, called through the instance or the class, is compiled into one graph with the right result."""

    class Static(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3) * 2)

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            owner = self if through == "instance" else type(self)
            return owner.scaled(tensor, self.weight)

        @staticmethod
        def scaled(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return tensor * weight

    graphs = Graphs()
    assert_close(torch.compile(_fsdp(world, Static()), backend=graphs)(torch.ones(3)), torch.full((3,), 2.0))
    assert len(graphs) == 1


@pytest.mark.covers("DY-54")
def test_hidden_layer_in_the_dictionary(world: World) -> None:
    """A layer that only ``__dict__`` holds, unknown to FSDP, is used: the compiled output is the plain model's."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(10, 10)
            self.__dict__["hidden"] = nn.Linear(10, 4)

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return self.hidden(self.net(tensor))

    model, value = seeded(Hidden), toy_input()
    expected = model(value)
    assert_close(torch.compile(_fsdp(world, model), backend="aot_eager")(value), expected)
