"""Communication hooks: their arguments and results; each equals plain DDP within its precision."""

from __future__ import annotations

import io

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks import (
    DDPCommHookType,
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
    register_ddp_comm_hook,
)

from disttest.testing.world import World

from ..ranks import exchange, raised_by
from ..replicas import assert_same_everywhere
from .models import DOUBLE, linear
from .training import assert_gradients_equal, batches, descend, gradients, share, twin, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


_batched_is_broken = pytest.mark.skipif(
    raised_by(powerSGD_hook._orthogonalize, torch.ones(2, 1)) is not None,
    reason="batched_powerSGD_hook of this torch hands 2-D factors to a function that takes 3-D ones only",
)


def _power_sgd(**options: object) -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(process_group=None, **options)


@pytest.mark.covers("CD-197", "CD-198")
@pytest.mark.parametrize("explicit_group", [False, True], ids=["default", "explicit"])
def test_allreduce_hook(world: World, explicit_group: bool) -> None:
    """``allreduce_hook`` gives what DDP without a hook gives, with the default group or a named one."""
    group = dist.new_group() if explicit_group else None
    model = linear()
    plain, hooked = wrap(world, twin(world, model)), wrap(world, twin(world, model), process_group=group)
    hooked.register_comm_hook(group, default_hooks.allreduce_hook)
    for batch in batches(world, 5):
        for each in (plain, hooked):
            each(share(world, batch)).square().mean().backward()
        assert_gradients_equal(hooked, plain)
        descend(plain, hooked)


@pytest.mark.covers("CD-197")
@pytest.mark.parametrize(
    ("hook", "tolerance"),
    [
        (default_hooks.fp16_compress_hook, 2e-3),
        (default_hooks.bf16_compress_hook, 2e-2),
        (BuiltinCommHookType.ALLREDUCE, 1e-7),
        (BuiltinCommHookType.FP16_COMPRESS, 2e-3),
    ],
    ids=["fp16", "bf16", "builtin", "builtin-fp16"],
)
def test_compressing_hooks(world: World, hook: object, tolerance: float) -> None:
    """Compressed gradients keep their dtype and differ from exact ones by no more than the narrow type's precision."""
    if hook is default_hooks.bf16_compress_hook and world.device.type == "cpu":
        pytest.skip("bf16_compress_hook asks for a CUDA device")
    model = linear()
    alone, together = twin(world, model), wrap(world, twin(world, model))
    if isinstance(hook, BuiltinCommHookType):
        together._register_builtin_comm_hook(hook)
    else:
        together.register_comm_hook(None, hook)
    for batch in batches(world, 3):
        alone(batch).square().mean().backward()
        together(share(world, batch)).square().mean().backward()
        got, exact = together.module.weight.grad, alone.weight.grad
        assert got.dtype == DOUBLE
        torch.testing.assert_close(got, exact, rtol=tolerance, atol=tolerance)
        descend(alone, together)


@pytest.mark.covers("CD-197")
def test_fp16_hook_really_narrows(world: World) -> None:
    """Gradients travel in half precision: a difference that only double precision holds is lost."""
    together = wrap(world, linear(1, 1))
    together.register_comm_hook(None, default_hooks.fp16_compress_hook)
    together(torch.full((1, 1), 1 + 1e-6, dtype=DOUBLE, device=world.device)).sum().backward()
    assert together.module.weight.grad.item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.needs("quantisation_hooks")
@pytest.mark.covers("CD-197")
@pytest.mark.parametrize(
    "hook", [quantization_hooks.quantization_pertensor_hook, quantization_hooks.quantization_perchannel_hook]
)
def test_quantising_hooks(world: World, hook: object) -> None:
    """Quantised gradients are the mean over ranks within a byte's precision."""
    model = nn.Linear(8, 8, bias=False)
    alone, together = twin(world, model), wrap(world, model)
    together.register_comm_hook(None, hook)
    for batch in batches(world, 2, width=8):
        alone(batch.float()).square().mean().backward()
        together(share(world, batch.float())).square().mean().backward()
        exact = alone.weight.grad
        torch.testing.assert_close(together.module.weight.grad, exact, rtol=0.01, atol=0.01)
        descend(alone, together)


@pytest.mark.covers("CD-199")
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize(
    "hook",
    [
        pytest.param(powerSGD_hook.powerSGD_hook, id="per-tensor"),
        pytest.param(powerSGD_hook.batched_powerSGD_hook, id="batched", marks=_batched_is_broken),
    ],
)
def test_power_sgd(world: World, hook: object, warm: bool) -> None:
    """Before ``start_powerSGD_iter`` gradients are exact; after it they are low-rank, and the error is fed back."""
    state = _power_sgd(
        matrix_approximation_rank=1,
        start_powerSGD_iter=2,
        warm_start=warm,
        use_error_feedback=True,
        min_compression_rate=0.1,
    )
    model = nn.Linear(12, 12, bias=False)
    alone, together = twin(world, model), wrap(world, model)
    together.register_comm_hook(state, hook)
    for step, batch in enumerate(batches(world, 5, width=12)):
        alone(batch.float()).square().mean().backward()
        together(share(world, batch.float())).square().mean().backward()
        gradient = together.module.weight.grad
        if step < 2:
            torch.testing.assert_close(gradient, alone.weight.grad)
        else:
            # The batched form lays the bucket out as a square matrix, which this square weight is already.
            assert torch.linalg.matrix_rank(gradient.cpu(), rtol=1e-4) == 1
        assert_same_everywhere(world, gradients(together))
        descend(alone, together)
    assert state.error_dict
    assert any(error.norm() > 0 for error in state.error_dict.values())


@pytest.mark.covers("CD-199")
def test_power_sgd_is_exact_on_rank_one_gradients(world: World) -> None:
    """A gradient that has rank one passes the compression unchanged: the mean over ranks."""
    state = _power_sgd(matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.1)
    together = wrap(world, nn.Linear(8, 8, bias=False))
    together.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        together.zero_grad()
        together(torch.full((1, 8), float(world.rank + 1), device=world.device)).sum().backward()
        expected = torch.full((8, 8), (world.size + 1) / 2, device=world.device)
        torch.testing.assert_close(together.module.weight.grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.covers("CD-201")
def test_power_sgd_state_is_picklable(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A saved state carries everything but the group, says so when loaded, and goes on with the same numbers."""
    state = _power_sgd(matrix_approximation_rank=2, start_powerSGD_iter=2)
    model = linear(12, 12)
    first = wrap(world, model)
    first.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    data = batches(world, 6, width=12)
    for batch in data[:4]:
        first(share(world, batch)).square().mean().backward()
        descend(first)
    file = io.BytesIO()
    torch.save({"model": first.module.state_dict(), "state": state}, file)
    file.seek(0)
    with caplog.at_level("WARNING"):
        saved = torch.load(file, weights_only=False)
    assert "process group" in caplog.text.lower()
    for slot in powerSGD_hook.PowerSGDState.__slots__:
        if slot in ("process_group", "rng", "error_dict", "p_memory_dict", "q_memory_dict"):
            continue
        assert getattr(saved["state"], slot) == getattr(state, slot), slot
    assert str(saved["state"].rng.get_state()) == str(state.rng.get_state())
    second = wrap(world, linear(12, 12))
    second.module.load_state_dict(saved["model"])
    second.register_comm_hook(saved["state"], powerSGD_hook.powerSGD_hook)
    for batch in data[4:]:
        for each in (first, second):
            each(share(world, batch)).square().mean().backward()
        assert_gradients_equal(second, first)
        descend(first, second)


@pytest.mark.covers("CD-200")
@pytest.mark.parametrize(
    ("start", "post_allreduce"), [(3, True), (3, False), (1000, True)], ids=["sub", "local", "late"]
)
def test_post_local_sgd_hook(world: World, start: int, post_allreduce: bool) -> None:
    """Gradients are averaged over the world until the start, then over the sub-group or not at all."""
    pairs = [list(range(low, min(low + 2, world.size))) for low in range(0, world.size, 2)]
    own, _ = dist.new_subgroups_by_enumeration(pairs)
    partners = next(pair for pair in pairs if world.rank in pair)
    state = post_localSGD_hook.PostLocalSGDState(
        process_group=None,
        subgroup=own,
        start_localSGD_iter=start,
        post_local_gradient_allreduce=post_allreduce,
    )
    together = wrap(world, linear(1, 1))
    together.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    for step in range(6):
        together.zero_grad()
        together(torch.full((1, 1), float(world.rank), dtype=DOUBLE, device=world.device)).sum().backward()
        members = list(range(world.size)) if step < start else partners if post_allreduce else [world.rank]
        assert together.module.weight.grad.item() == pytest.approx(sum(members) / len(members)), (
            f"step {step}"
        )


@pytest.mark.covers("CD-197")
@pytest.mark.parametrize("megabytes", [1e-5, 25], ids=["many", "one"])
def test_hook_sees_every_bucket_once(world: World, megabytes: float) -> None:
    """In each backward the hook is called once for each bucket; together the buckets hold each gradient once."""
    calls: list[tuple[int, bool, int]] = []

    def hook(seen, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append((bucket.index(), bucket.is_last(), sum(g.numel() for g in bucket.gradients())))
        return default_hooks.allreduce_hook(None, bucket)

    hook.__annotations__.update(bucket=dist.GradBucket, **{"return": torch.futures.Future[torch.Tensor]})
    model = nn.Sequential(*(linear() for _ in range(4)))
    alone, together = twin(world, model), wrap(world, model, bucket_cap_mb=megabytes)
    together.register_comm_hook(calls, hook)
    total = sum(parameter.numel() for parameter in model.parameters())
    for batch in batches(world, 3):
        calls.clear()
        together(share(world, batch)).square().mean().backward()
        alone(batch).square().mean().backward()
        assert_gradients_equal(together, alone)
        assert sorted(index for index, _, _ in calls) == list(range(len(calls)))
        assert sum(last for _, last, _ in calls) == 1
        assert sum(size for _, _, size in calls) == total
        descend(together, alone)
    assert (len(calls) > 1) == (megabytes < 1)


@pytest.mark.covers("CD-196")
@pytest.mark.parametrize("kind", list(DDPCommHookType), ids=lambda kind: kind.name.lower())
def test_registered_hook_is_logged(world: World, kind: DDPCommHookType) -> None:
    """The logging data names the hook once one is registered, and no hook before."""
    if world.device.type == "cpu" and "BF16" in kind.name:
        pytest.skip("bf16_compress_hook asks for a CUDA device at registration")
    together = wrap(world, linear(12, 12))
    assert "comm_hook" not in together._get_ddp_logging_data()
    register_ddp_comm_hook(kind, together)
    assert together._get_ddp_logging_data()["comm_hook"] == kind.value.keywords["comm_hook"].__qualname__


@pytest.mark.covers("CD-196")
@pytest.mark.parametrize("kind", [BuiltinCommHookType.ALLREDUCE, BuiltinCommHookType.FP16_COMPRESS], ids=str)
def test_builtin_hook_is_logged(world: World, kind: BuiltinCommHookType) -> None:
    """A built-in hook is logged under the name of its type."""
    together = wrap(world, linear())
    together._register_builtin_comm_hook(kind)
    assert together._get_ddp_logging_data()["comm_hook"] == str(kind)


@pytest.mark.covers("CD-196")
def test_no_hook_is_logged_as_none(world: World) -> None:
    """A model that trains without a hook never shows one."""
    together = wrap(world, linear())
    for batch in batches(world, 2):
        together(share(world, batch)).sum().backward()
    assert not together._get_ddp_logging_data().get("comm_hook", "")


@pytest.mark.covers("CD-248")
def test_hook_that_is_not_callable(world: World) -> None:
    """Registering something that cannot be called is a TypeError, and is logged."""
    together = wrap(world, linear())
    with pytest.raises(TypeError, match="must be callable"):
        together.register_comm_hook({}, {})
    assert "must be callable" in together._get_ddp_logging_data()["error"]


@pytest.mark.covers("CD-197")
def test_one_hook_per_model(world: World) -> None:
    """A second hook is refused."""
    together = wrap(world, linear())
    together.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(RuntimeError, match="register_comm_hook"):
        together.register_comm_hook(None, debugging_hooks.noop_hook)


@pytest.mark.covers("CD-197")
def test_noop_hook_leaves_gradients_local(world: World) -> None:
    """``noop_hook`` communicates nothing: each rank keeps its own gradient."""
    together = wrap(world, linear(1, 1))
    together.register_comm_hook(None, debugging_hooks.noop_hook)
    together(torch.full((1, 1), float(world.rank), dtype=DOUBLE, device=world.device)).sum().backward()
    own = exchange(world, together.module.weight.grad.item())
    assert own == [float(rank) for rank in range(world.size)]
