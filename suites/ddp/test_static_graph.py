"""Static graphs: the recording of the first step holds for all others, and a change is an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from disttest.testing.world import World

from .models import DOUBLE, WIDTH, Apply, Switch, TwoHeads, linear
from .training import assert_gradients_equal, batches, descend, share, twin, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


def _ones(world: World) -> torch.Tensor:
    return torch.ones(2, WIDTH, dtype=DOUBLE, device=world.device)


@pytest.mark.covers("CD-249")
def test_too_late(world: World) -> None:
    """Asking for a static graph after training has begun is an error, and is logged."""
    together = wrap(world, linear())
    together(_ones(world)).sum().backward()
    with pytest.raises(RuntimeError, match="should be called before training loop starts"):
        together._set_static_graph()
    assert "should be called before training loop starts" in together._get_ddp_logging_data()["error"]


@pytest.mark.covers("CD-184", "CD-249")
def test_asking_twice(world: World) -> None:
    """Asking for a static graph twice before training is harmless."""
    together = wrap(world, linear(), static_graph=True)
    together._set_static_graph()
    alone = twin(world, together.module)
    for batch in batches(world, 3):
        together(share(world, batch)).mean().backward()
        alone(batch).mean().backward()
        assert_gradients_equal(together, alone)


@pytest.mark.covers("CD-250")
@pytest.mark.parametrize("grows", [True, False], ids=["grows", "shrinks"])
def test_graph_that_changes(world: World, grows: bool) -> None:
    """A graph that gains or loses a layer after the first step is an error that says so, and is logged."""
    together = wrap(world, Switch(), static_graph=True)
    together(_ones(world), both=not grows).sum().backward()
    with pytest.raises(RuntimeError) as caught:
        together(_ones(world), both=grows).sum().backward()
        together(_ones(world), both=grows).sum().backward()
    text = str(caught.value)
    if grows:
        assert "Your training graph has changed in this iteration" in text
    else:
        assert "Expected to have finished reduction in the prior iteration" in text
        assert "static_graph" in text
        assert f"Parameter indices which did not receive grad for rank {world.rank}: 1" in text
    assert text.split("\nException raised from ")[0] in together._get_ddp_logging_data()["error"]


@pytest.mark.covers("CD-251")
def test_nested_outputs(world: World) -> None:
    """Nested lists, tuples and dicts come out as they went in, and train as without a static graph."""

    def forward(heads: nn.Module, x: torch.Tensor) -> dict[str, object]:
        a, b = heads(x)
        return {"list": [a, {"deep": (b, a + 1)}], "tuple": (b,)}

    model = Apply(forward, TwoHeads())
    alone, together = twin(world, model), wrap(world, model, static_graph=True)
    for batch in batches(world, 3):
        for each, part in ((alone, batch), (together, share(world, batch))):
            out = each(part)
            assert type(out) is dict
            assert [type(out["list"]), type(out["tuple"]), type(out["list"][1]["deep"])] == [
                list,
                tuple,
                tuple,
            ]
            (
                out["list"][0].mean() + out["list"][1]["deep"][1].square().mean() + out["tuple"][0].mean()
            ).backward()
        assert_gradients_equal(together, alone)
        descend(alone, together)


@pytest.mark.covers("CD-252")
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "varying"])
def test_static_graph_is_detected(world: World, constant: bool) -> None:
    """The reducer knows whether the set of unused parameters has been the same so far."""
    together = wrap(world, Switch(), find_unused_parameters=True)
    for step in range(4):
        together(_ones(world), both=not constant and step == 2).sum().backward()
    assert together.reducer._ddp_graph_static() == constant


@pytest.mark.covers("CD-253")
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_two_forwards_before_one_backward(world: World, static: bool) -> None:
    """Two forwards share one backward, three rounds long: gradients are those of one process."""
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    alone, together = twin(world, model), wrap(world, model, static_graph=static)
    data = batches(world, 6)
    for one, other in zip(data[::2], data[1::2], strict=True):
        for each, parts in ((alone, (one, other)), (together, (share(world, one), share(world, other)))):
            sum(each(part).square().mean() for part in parts).backward()
        assert_gradients_equal(together, alone)
        descend(alone, together)


@pytest.mark.covers("CD-249")
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
@pytest.mark.parametrize("often", [1, 2], ids=["once", "twice"])
def test_checkpointed_layers(world: World, often: int, reentrant: bool) -> None:
    """A layer that is checkpointed once or several times trains right when the graph is static."""

    def forward(layers: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = layers[0](x)
        for _ in range(often):
            x = checkpoint(layers[1], x, use_reentrant=reentrant)
        return layers[2](x)

    model = Apply(forward, nn.ModuleList([linear() for _ in range(3)]))
    alone, together = twin(world, model), wrap(world, model, static_graph=True, bucket_cap_mb=1e-5)
    for batch in batches(world, 4):
        alone(batch).square().mean().backward()
        together(share(world, batch)).square().mean().backward()
        assert_gradients_equal(together, alone)
        descend(alone, together)


@pytest.mark.covers("CD-249")
def test_reentrant_checkpoint_of_a_shared_layer_needs_a_static_graph(world: World) -> None:
    """Without a static graph, a layer checkpointed twice is marked ready twice: an error that says what helps."""

    def forward(layers: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(layers[1], layers[0](x), use_reentrant=True)
        return checkpoint(layers[1], x, use_reentrant=True)

    together = wrap(world, Apply(forward, nn.ModuleList([linear(), linear()])))
    with pytest.raises(RuntimeError, match="mark a variable ready only once"):
        together(_ones(world)).sum().backward()


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-254")
def test_compiled(world: World) -> None:
    """Compiled, the dynamic and the static wrapper give equal outputs and gradients."""
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    pair = [
        torch.compile(wrap(world, twin(world, model), static_graph=s), backend="aot_eager")
        for s in (False, True)
    ]
    alone = twin(world, model)
    for batch in batches(world, 4):
        outputs = [each(share(world, batch)) for each in pair]
        torch.testing.assert_close(*outputs)
        for out in outputs:
            out.square().mean().backward()
        alone(batch).square().mean().backward()
        for each in pair:
            assert_gradients_equal(each._orig_mod, alone)
        descend(*pair, alone)
