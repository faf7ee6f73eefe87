"""Unused parameters: found, waited for, unchanged; and the errors when DDP does not look for them."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from disttest.testing.world import World

from ..replicas import assert_same_everywhere
from .models import DOUBLE, WIDTH, Apply, Switch, TwoHeads, linear
from .training import (
    assert_gradients_equal,
    assert_parameters_equal,
    batches,
    descend,
    gradients,
    ignoring,
    parameters,
    require_option,
    share,
    twin,
    wrap,
)

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]

UNFINISHED = "Expected to have finished reduction in the prior iteration"
ADVICE = "passing the keyword argument `find_unused_parameters=True`"
ALREADY_ON = "Since `find_unused_parameters=True` is enabled"
OUTPUTS = "`forward` function outputs participate in calculating loss"
DEBUG_HINT = "set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL"


def _second_step_error(together: nn.Module, *args: object, **kwargs: object) -> str:
    """The text of the error that the forward after an unfinished backward raises."""
    with pytest.raises(RuntimeError) as caught:
        together(*args, **kwargs)
    text = str(caught.value)
    logged = together._get_ddp_logging_data()
    assert logged["has_error"]
    assert text.split("\nException raised from ")[0] in logged["error"]
    return text


@pytest.mark.covers("CD-236")
def test_layer_that_is_never_used(world: World, debug_level: str) -> None:
    """Without ``find_unused_parameters`` the second step raises and says what to do; INFO and DETAIL name the layer."""
    together = wrap(world, TwoHeads(unused=True))
    x = torch.ones(2, WIDTH, dtype=DOUBLE, device=world.device)
    sum(out.sum() for out in together(x)).backward()
    text = _second_step_error(together, x)
    for part in (ADVICE, OUTPUTS):
        assert part in text
    assert ALREADY_ON not in text
    assert (DEBUG_HINT in text) == (debug_level == "OFF")
    _assert_names(text, world, debug_level, index=2, name="c.weight")


@pytest.mark.covers("CD-238")
def test_layer_that_some_steps_use(world: World, debug_level: str) -> None:
    """A layer used in every second step: the search counts its users; without it the next step raises and names it."""
    x = torch.ones(2, WIDTH, dtype=DOUBLE, device=world.device)
    together = wrap(world, Switch(), find_unused_parameters=True)
    for step in range(4):
        together.zero_grad()
        together(x, both=bool(step % 2)).sum().backward()
        assert together.reducer._get_local_used_map().tolist() == [world.size, world.size if step % 2 else 0]
    strict = wrap(world, Switch())
    strict(x, both=False).sum().backward()
    _assert_names(
        _second_step_error(strict, x, both=False), world, debug_level, index=1, name="second.weight"
    )


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-239")
def test_layer_that_some_ranks_use(world: World, debug_level: str) -> None:
    """Each rank uses one of two layers: the search counts users; without it each rank's error names its unused layer."""
    x = torch.ones(2, WIDTH, dtype=DOUBLE, device=world.device)
    mine = world.rank % 2
    together = wrap(world, TwoHeads(), find_unused_parameters=True)
    for _ in range(2):
        together.zero_grad()
        together(x)[mine].sum().backward()
        assert together.reducer._get_local_used_map().tolist() == [(world.size + 1) // 2, world.size // 2]
    strict = wrap(world, TwoHeads())
    strict(x)[mine].sum().backward()
    name = "a.weight" if mine else "b.weight"
    _assert_names(_second_step_error(strict, x), world, debug_level, index=1 - mine, name=name)


def _assert_names(text: str, world: World, debug_level: str, *, index: int, name: str) -> None:
    """The error names the parameter by index, and by name from level INFO on."""
    assert UNFINISHED in text
    assert f"Parameter indices which did not receive grad for rank {world.rank}: {index}" in text
    assert (f"did not receive grad for rank {world.rank}: {name}" in text) == (debug_level != "OFF")


@pytest.mark.covers("CD-237")
@pytest.mark.parametrize("static_graph", [False, True], ids=["dynamic", "static"])
def test_unused_parameters_that_share_a_gradient(world: World, static_graph: bool) -> None:
    """The same bias under two names, unused, does not break the search."""
    model = nn.ModuleDict({"used": linear(), "one": linear(bias=True), "other": linear(bias=True)})
    model["other"].bias = model["one"].bias
    together = wrap(
        world,
        Apply(lambda layers, x: layers["used"](x), model),
        find_unused_parameters=True,
        static_graph=static_graph,
    )
    alone = twin(world, model["used"])
    for batch in batches(world, 3):
        together(share(world, batch)).square().mean().div_(2).backward()
        alone(batch).square().mean().div(2).backward()
        torch.testing.assert_close(together.module.layer["used"].weight.grad, alone.weight.grad)
        descend(together, alone)


@pytest.mark.covers("CD-240", "CD-241")
@pytest.mark.parametrize("as_dict", [False, True], ids=["tuple", "dict"])
@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_output_that_the_loss_ignores(world: World, as_dict: bool, view: bool) -> None:
    """An output left out of the loss: its gradient stays None; dropped later, its gradient is unchanged."""

    def forward(heads: nn.Module, x: torch.Tensor) -> object:
        a, b = heads(x)
        return {"a": a, "b": {"inner": b}} if as_dict else (a, b)

    def pick(out: object) -> tuple[torch.Tensor, torch.Tensor]:
        return (out["a"], out["b"]["inner"]) if as_dict else out

    model = Apply(forward, TwoHeads())
    alone, together = (
        twin(world, model),
        wrap(world, model, find_unused_parameters=True, gradient_as_bucket_view=view),
    )
    data = batches(world, 6)
    for step, batch in enumerate(data):
        for each, part in ((alone, batch), (together, share(world, batch))):
            a, b = pick(each(part))
            (b.square().mean() if step in (0, 1, 4, 5) else a.square().mean() + b.square().mean()).backward()
        kept = gradients(together)["layer.a.weight"]
        assert (kept is None) == (step < 2)
        assert_gradients_equal(together, alone)


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-236")
@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_used_by_one_rank_only(world: World, view: bool) -> None:
    """A layer that only rank 1 uses gets rank 1's gradient divided by all, on every rank; unused by all: None."""
    together = wrap(
        world,
        Apply(
            lambda heads, x: sum(h(x).sum() for h in heads), nn.ModuleList([linear(1, 1) for _ in range(3)])
        ),
        find_unused_parameters=True,
        gradient_as_bucket_view=view,
    )
    layers = together.module.layer
    together.module.function = lambda heads, x: (
        heads[0](x).sum() + (heads[1](x).sum() if world.rank == 1 else 0)
    )
    together(torch.full((1, 1), 6.0, dtype=DOUBLE, device=world.device)).backward()
    assert layers[0].weight.grad.item() == pytest.approx(6.0)
    assert layers[1].weight.grad.item() == pytest.approx(6.0 / world.size)
    assert layers[2].weight.grad is None
    assert_same_everywhere(world, gradients(together))


@pytest.mark.covers("CD-236")
def test_unused_everywhere_keeps_its_gradient(world: World) -> None:
    """A parameter that no rank uses in a step keeps the gradient of the step before, not a new mean of it."""
    together = wrap(world, Switch(), find_unused_parameters=True)
    x = torch.ones(1, WIDTH, dtype=DOUBLE, device=world.device) * (world.rank + 1)
    together(x, both=True).sum().backward()
    together.module.second.weight.grad.fill_(7.0)
    together(x, both=False).sum().backward()
    assert set(together.module.second.weight.grad.flatten().tolist()) == {7.0}


@pytest.mark.covers("CD-242")
def test_undefined_gradients(world: World) -> None:
    """Gradients that autograd leaves undefined come out as they do in one process: None."""

    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> None:
            return None

    model = Apply(
        lambda heads, x: (heads[0](x), Undefined.apply(heads[1](x))), nn.ModuleList([linear(), linear()])
    )
    alone, together = twin(world, model), wrap(world, model, find_unused_parameters=True)
    for batch in batches(world, 2):
        for each, part in ((alone, batch), (together, share(world, batch))):
            a, b = each(part)
            (a.mean() + b.mean()).backward()
        assert_gradients_equal(together, alone)
        descend(alone, together)
    assert alone.layer[1].weight.grad is None


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-243")
def test_each_rank_has_its_own_graph(world: World) -> None:
    """Only rank 0 uses the second layer: the search does not rebuild buckets, a static graph does; values agree."""
    model = Switch()
    searching = wrap(world, twin(world, model), find_unused_parameters=True)
    static = wrap(world, twin(world, model), find_unused_parameters=True, static_graph=True)
    for batch in batches(world, 6):
        for each in (searching, static):
            each(share(world, batch), both=world.is_first).square().mean().backward()
        assert_gradients_equal(searching, static)
        descend(searching, static)
    assert not searching._get_ddp_logging_data()["has_rebuilt_buckets"]
    assert static._get_ddp_logging_data()["has_rebuilt_buckets"]
    assert_same_everywhere(world, parameters(static))


class _Nested(nn.Module):
    """Layers used and unused on several levels, and an embedding that DDP may have to ignore."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.ModuleDict({"used": linear(), "unused": linear(bias=True)})
        self.inner = nn.Module()
        self.inner.deep = nn.ModuleDict({"used": linear(), "unused": linear()})
        self.table = nn.Embedding(4, 2, dtype=DOUBLE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.deep["used"](self.outer["used"](x))


@pytest.mark.covers("CD-244", "CD-245")
@pytest.mark.parametrize("ignore", [False, True], ids=["all", "one-ignored"])
def test_error_names_nested_parameters(world: World, debug_level: str, ignore: bool) -> None:
    """The error lists each unused parameter by full name and index; used and ignored ones are not in it."""
    model = _Nested()
    if ignore:
        ignoring(world, model, "table.weight")
    names = [name for name, _ in model.named_parameters() if not (ignore and name == "table.weight")]
    unused = [name for name in names if "unused" in name or name == "table.weight"]
    together = wrap(world, model)
    x = torch.ones(2, WIDTH, dtype=DOUBLE, device=world.device)
    together(x).sum().backward()
    text = _second_step_error(together, x)
    tail = text[text.index("did not receive grad") :]
    indices = re.search(rf"indices which did not receive grad for rank {world.rank}: ([\d ]+)", text)
    assert sorted(map(int, indices[1].split())) == sorted(names.index(name) for name in unused)
    named = {
        name for name, _ in model.named_parameters() if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", tail)
    }
    assert named == (set() if debug_level == "OFF" else set(unused))


@pytest.mark.covers("CD-246")
def test_wrap_again_after_a_failure(world: World) -> None:
    """With its hooks removed, a wrapper that failed does not prevent a second one."""
    model = Apply(lambda layer, x: Explosion.apply(layer(x)))
    first = wrap(world, model)
    x = torch.ones(2, WIDTH, dtype=DOUBLE, device=world.device)
    with pytest.raises(RuntimeError, match="on purpose"):
        first(x).sum().backward()
    first._remove_autograd_hooks()
    model.function = lambda layer, x: layer(x)
    model.zero_grad()
    alone = twin(world, model)
    second = wrap(world, model)
    for batch in batches(world, 2):
        with torch.autograd.profiler.profile() as profiler:
            second(share(world, batch)).mean().backward()
        names = [event.name for event in profiler.function_events]
        assert names.count(f"{world.backend}:all_reduce") == 1, "the first wrapper still reduces"
        alone(batch).mean().backward()
        assert_gradients_equal(second, alone)
        descend(second, alone)


class Explosion(torch.autograd.Function):
    """Raises in backward."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("on purpose")


@pytest.mark.covers("CD-247")
def test_unfinished_reduction_can_be_asked_for(world: World) -> None:
    """After a backward that left a parameter out, the reducer says that it has not finished; after a full one it has."""
    together = wrap(world, TwoHeads())
    x = torch.ones(2, WIDTH, dtype=DOUBLE, device=world.device)
    sum(out.sum() for out in together(x)).backward()
    together._check_reducer_finalized()
    together(x)[1].sum().backward()
    with pytest.raises(RuntimeError, match=UNFINISHED):
        together._check_reducer_finalized()


@pytest.mark.covers("CD-285")
@pytest.mark.parametrize("skip", [False, True])
def test_skip_all_reduce_of_unused(world: World, skip: bool) -> None:
    """``skip_all_reduce_unused_params`` leaves out unused buckets; parameters are the same."""
    require_option("skip_all_reduce_unused_params")
    model = Switch()
    together = wrap(
        world,
        twin(world, model),
        find_unused_parameters=True,
        bucket_cap_mb=1e-5,
        skip_all_reduce_unused_params=skip,
    )
    plain = wrap(world, twin(world, model), find_unused_parameters=True)
    for batch in batches(world, 3):
        for each in (together, plain):
            each(share(world, batch), both=False).square().mean().backward()
        descend(together, plain)
    assert_parameters_equal(together, plain)
    assert together._get_ddp_logging_data().get("num_buckets_reduced") == (1 if skip else 2)
