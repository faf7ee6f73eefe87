"""Training with DDP equals training in one process on the whole batch."""

from __future__ import annotations

import io
import itertools

import pytest
import torch
from torch import nn

from disttest.testing.world import World

from ..ranks import exchange
from ..replicas import assert_different_everywhere, assert_same_everywhere
from .models import DOUBLE, Apply, Counter, Perceptron, linear
from .training import (
    assert_gradients_equal,
    assert_parameters_equal,
    assert_synchronised,
    batches,
    descend,
    differ_by_rank,
    gradients,
    parameters,
    share,
    twin,
    wrap,
)

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


@pytest.mark.covers("CD-181", "CD-182", "CD-184")
@pytest.mark.parametrize("static_graph", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_trains_as_one_process_does(world: World, view: bool, static_graph: bool) -> None:
    """Gradients and parameters equal those of one process on the whole batch, five steps long."""
    model = Perceptron()
    alone = twin(world, model)
    together = wrap(world, model, gradient_as_bucket_view=view, static_graph=static_graph)
    for batch in batches(world, 5, width=2):
        alone(batch).square().mean().backward()
        together(share(world, batch)).square().mean().backward()
        assert_gradients_equal(together, alone)
        descend(alone, together)
    assert_parameters_equal(together, alone)


@pytest.mark.covers("CD-181")
@pytest.mark.parametrize("megabytes", [1e-5, 1e-3, 25], ids=["one-per-bucket", "several", "one-bucket"])
def test_bucket_size_changes_nothing(world: World, megabytes: float) -> None:
    """Gradients are right whatever the bucket size, before and after buckets are rebuilt."""
    model = nn.Sequential(*(linear(bias=True) for _ in range(6)))
    alone = twin(world, model)
    together = wrap(world, model, bucket_cap_mb=megabytes)
    for batch in batches(world, 3):
        alone(batch).square().mean().backward()
        together(share(world, batch)).square().mean().backward()
        assert_gradients_equal(together, alone)
        descend(alone, together)


@pytest.mark.covers("CD-181")
def test_parameters_of_several_types(world: World) -> None:
    """Parameters of different dtypes go into separate buckets and are all averaged."""
    model = Apply(lambda layer, x: layer["wide"].sum() * x + layer["narrow"].sum() * x, nn.ParameterDict())
    model.layer.update({"wide": torch.ones(5, dtype=DOUBLE), "narrow": torch.ones(3)})
    together = wrap(world, model)
    together(torch.tensor(float(world.rank), device=world.device)).backward()
    mean = (world.size - 1) / 2
    assert model.layer.wide.grad.tolist() == [mean] * 5
    assert model.layer.narrow.grad.tolist() == [mean] * 3


@pytest.mark.covers("CD-181", "CD-182")
def test_gradient_is_the_mean_over_ranks(world: World) -> None:
    """A rank whose loss is r times as steep counts as such: the gradient is the mean of all ranks' own."""
    model = wrap(world, linear(4, 1))
    model(torch.full((1, 4), float(world.rank), dtype=DOUBLE, device=world.device)).sum().backward()
    own = exchange(world, float(world.rank))
    expected = torch.full((1, 4), sum(own) / world.size, dtype=DOUBLE)
    torch.testing.assert_close(model.module.weight.grad.cpu(), expected)
    assert_synchronised(world, model)


@pytest.mark.covers("CD-182")
@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_gradient_as_bucket_view(world: World, view: bool) -> None:
    """With ``gradient_as_bucket_view`` gradients share one storage, without it each has its own."""
    model = wrap(world, nn.Sequential(linear(), linear()), gradient_as_bucket_view=view)
    for batch in batches(world, 2):
        model(share(world, batch)).sum().backward()
    storages = {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert len(storages) == (1 if view else 2)


@pytest.mark.covers("CD-189")
def test_construction_takes_the_first_ranks_values(world: World) -> None:
    """Wrapping copies parameters and buffers of rank 0 to all ranks."""
    model = differ_by_rank(world, Counter())
    assert_different_everywhere(world, model.layer.weight)
    expected = exchange(world, [*parameters(model).values(), *model.buffers()])[0]
    together = wrap(world, model)
    torch.testing.assert_close(
        [tensor.cpu() for tensor in (*parameters(together).values(), *together.buffers())],
        expected,
        rtol=0,
        atol=0,
    )


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-189")
def test_module_states_from_another_rank(world: World) -> None:
    """``_sync_module_states(src=1)`` copies the values of rank 1, also of a module put in later."""
    together = wrap(world, linear())
    together.module = differ_by_rank(world, linear().to(world.device))
    expected = exchange(world, parameters(together))[1]
    torch.distributed.utils._sync_module_states(
        module=together.module,
        process_group=together.process_group,
        broadcast_bucket_size=250 * 1024 * 1024,
        src=1,
        params_and_buffers_to_ignore=set(),
    )
    torch.testing.assert_close({name: p.cpu() for name, p in parameters(together).items()}, expected)


@pytest.mark.covers("CD-181")
@pytest.mark.parametrize("steps_before", [0, 2])
def test_checkpoint_round_trip(world: World, steps_before: int) -> None:
    """A wrapped model that is saved whole and loaded again goes on exactly as the original does."""
    together = wrap(world, Perceptron())
    data = batches(world, steps_before + 2, width=2)
    for batch in data[:steps_before]:
        together(share(world, batch)).square().mean().backward()
        descend(together)
    file = io.BytesIO()
    torch.save(together, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.state_dict().keys() == together.state_dict().keys()
    for batch in data[steps_before:]:
        for model in (together, loaded):
            model(share(world, batch)).square().mean().backward()
        assert_gradients_equal(loaded, together)
        descend(together, loaded)


@pytest.mark.covers("CD-181")
def test_checkpoint_written_by_one_rank(world: World, world_tmp_path) -> None:
    """A state dict that rank 0 writes is what every rank reads."""
    together = wrap(world, differ_by_rank(world, Perceptron()))
    path = world_tmp_path / "state.pt"
    if world.is_first:
        torch.save(together.state_dict(), path)
    exchange(world, None)
    other = wrap(world, Perceptron())
    other.load_state_dict(torch.load(path, map_location=world.device))
    assert_parameters_equal(other, together)


@pytest.mark.covers("CD-183")
def test_nothing_to_train_is_an_error(world: World) -> None:
    """A module without a parameter that requires gradients cannot be wrapped."""
    frozen = linear().requires_grad_(False)
    with pytest.raises(RuntimeError, match="any parameter that requires a gradient"):
        wrap(world, frozen)


@pytest.mark.covers("CD-185")
def test_layer_without_outputs(world: World) -> None:
    """A layer with zero output features can be wrapped and trained."""
    model = wrap(world, nn.Linear(10, 0, dtype=DOUBLE))
    model(torch.ones(2, 10, dtype=DOUBLE, device=world.device)).sum().backward()
    assert model.module.weight.grad.shape == (0, 10)


@pytest.mark.covers("CD-186")
def test_create_graph(world: World) -> None:
    """``backward(create_graph=True)`` works again and again, with averaged values."""
    model = linear(4, 1)
    together = wrap(world, model)
    for _ in range(4):
        together.zero_grad()
        x = torch.full((1, 4), float(world.rank), dtype=DOUBLE, device=world.device, requires_grad=True)
        together(x).sum().backward(create_graph=True)
        torch.testing.assert_close(model.weight.grad, torch.full_like(model.weight, (world.size - 1) / 2))
        assert all(parameter.requires_grad for parameter in together.parameters())
    assert x.grad is not None


@pytest.mark.covers("CD-187")
def test_many_steps_stay_together(world: World) -> None:
    """A hundred steps with inputs of each rank's own: the gradient is the mean every single time."""
    together = wrap(world, linear(1, 1))
    for step in range(100):
        together.zero_grad()
        together(
            torch.full((1, 1), float(world.rank + step), dtype=DOUBLE, device=world.device)
        ).sum().backward()
        assert together.module.weight.grad.item() == pytest.approx(step + (world.size - 1) / 2)


@pytest.mark.needs("cuda_tensors")
@pytest.mark.covers("CD-187")
def test_side_stream(world: World) -> None:
    """Steps on a stream that is not the default one see finished gradients."""
    stream = torch.cuda.Stream(world.device)
    with torch.cuda.stream(stream):
        together = wrap(world, nn.Linear(1000, 1, bias=False))
        for step in range(50):
            together.zero_grad()
            together(torch.full((1, 1000), float(world.rank + step), device=world.device)).sum().backward()
            mean = step + (world.size - 1) / 2
            torch.testing.assert_close(
                together.module.weight.grad, torch.full((1, 1000), mean, device=world.device)
            )


@pytest.mark.needs("cuda_tensors")
@pytest.mark.covers("CD-184")
@pytest.mark.parametrize("as_object", [False, True], ids=["index", "device"])
def test_device_ids(world: World, as_object: bool) -> None:
    """Devices are given as indices or as objects, with or without an output device."""
    device = world.device if as_object else world.device.index
    alone = Perceptron().to(world.device)
    for options in ({"device_ids": [device]}, {"device_ids": [device], "output_device": device}):
        together = nn.parallel.DistributedDataParallel(twin(world, alone), **options)
        for batch in batches(world, 2, width=2):
            together(share(world, batch).cpu()).square().mean().backward()
            alone(batch).square().mean().backward()
            assert_gradients_equal(together, alone)
            together.zero_grad()
            alone.zero_grad()


@pytest.mark.covers("CD-181")
def test_two_wrapped_models_side_by_side(world: World) -> None:
    """Two wrapped models take turns and do not mix their gradients up."""
    models = [linear(), linear()]
    copies = [twin(world, model) for model in models]
    wrapped = [wrap(world, model) for model in models]
    for batch, (one, other) in zip(batches(world, 4), itertools.cycle([(0, 1), (1, 0)])):
        loss = (
            wrapped[one](share(world, batch)).square().mean() + 2 * wrapped[other](share(world, batch)).mean()
        )
        loss.backward()
        (copies[one](batch).square().mean() + 2 * copies[other](batch).mean()).backward()
        for model, alone in zip(wrapped, copies, strict=True):
            assert_gradients_equal(model, alone)
        descend(*wrapped, *copies)


@pytest.mark.covers("CD-181")
def test_gradients_reach_the_optimizer(world: World) -> None:
    """A real optimiser ends with the same parameters on all ranks, equal to one process's."""
    model = Perceptron()
    alone = twin(world, model)
    together = wrap(world, model)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (alone, together)]
    for batch in batches(world, 4, width=2):
        alone(batch).square().mean().backward()
        together(share(world, batch)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_parameters_equal(together, alone)
    assert_same_everywhere(world, parameters(together))
    assert all(gradient is None for gradient in gradients(together).values())
