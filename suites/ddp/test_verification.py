"""Models that differ across ranks are refused, with an error that says where; and how parameters go into buckets."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from disttest.testing.world import World

from ..ranks import exchange, raised_by, subgroup
from .models import DOUBLE, linear
from .training import batches, share, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


def _compute_buckets(tensors: list[torch.Tensor], limits: list[int], logger: object = None) -> object:
    arguments = [tensors, limits] if logger is None else [tensors, limits, [], [], logger]
    return dist._compute_bucket_assignment_by_size(*arguments)


@pytest.mark.covers("CD-270", "CD-271")
@pytest.mark.parametrize("logged", [False, True], ids=["without-logger", "with-logger"])
def test_sparse_tensors_have_no_bucket(world: World, logged: bool) -> None:
    """Sparse tensors cannot be assigned to buckets: an error, in the log data too when there is a logger."""
    sparse = [torch.ones(50).to_sparse(), torch.ones(25, dtype=DOUBLE).to_sparse()] * 3
    together = wrap(world, linear())
    with pytest.raises(RuntimeError, match="No support for sparse tensors"):
        if logged:
            _compute_buckets(sparse, [400], together.logger)
        else:
            _compute_buckets(sparse, [400])
    if logged:
        assert "No support for sparse tensors" in together._get_ddp_logging_data()["error"]


@pytest.mark.covers("CD-271")
def test_buckets_hold_one_type_up_to_the_limit(world: World) -> None:
    """Parameters go into buckets in order, one dtype each, closed once the limit is reached."""
    tensors = [torch.empty(n, dtype=kind) for n in (50, 25, 50) for kind in (torch.float32, DOUBLE)]
    buckets, limits = _compute_buckets(tensors, [200, 400])
    assert sorted(index for bucket in buckets for index in bucket) == list(range(6))
    for bucket, limit in zip(buckets, limits, strict=True):
        assert len({tensors[index].dtype for index in bucket}) == 1
        assert limit in (200, 400)
        assert sum(tensors[i].nbytes for i in bucket[:-1]) < limit, "a full bucket was filled on"


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-272", "CD-273", "CD-274")
@pytest.mark.parametrize("through", ["wrapper", "check", "check-with-logger"])
def test_different_shapes(world: World, through: str) -> None:
    """A parameter shaped differently on rank 0: every other rank says which parameter does not match."""
    good = wrap(world, linear())
    width = 500 if world.is_first else 50
    model = nn.Sequential(nn.Embedding(10, width), nn.Linear(width, 1)).to(world.device)
    with subgroup(list(range(world.size)), timeout=timedelta(seconds=1)) as group:
        if through == "wrapper":
            error = raised_by(wrap, world, model, process_group=group)
        else:
            arguments = (group, list(model.parameters()), *([good.logger] if "logger" in through else []))
            error = raised_by(dist._verify_params_across_processes, *arguments)
        texts = exchange(world, str(error or ""))
    assert all("appears not to match" in text for text in texts[1:]), texts
    assert "params[0]" in texts[1]
    if through == "check-with-logger" and not world.is_first:
        assert "appears not to match" in good._get_ddp_logging_data()["error"]


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-275")
def test_different_numbers_of_parameters(world: World) -> None:
    """One rank has a parameter more: every rank refuses, and names the ranks that differ."""
    model = nn.ModuleList([linear(), *([linear(1, 1)] if world.rank == 1 else [])])
    with pytest.raises(RuntimeError, match="DDP expects same model across all ranks"):
        wrap(world, model)


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-275")
def test_error_of_one_rank_does_not_pass(world: World) -> None:
    """An exception in one rank's backward comes out on that rank, and does not look like success anywhere."""
    together = wrap(world, linear())
    x = share(world, batches(world, 1)[0])
    error = None
    if world.rank == 1:
        handle = together.module.weight.register_hook(_explode)
        with together.no_sync():
            error = raised_by(lambda: together(x).sum().backward())
        handle.remove()
    seen = exchange(world, str(error))
    assert "on purpose" in seen[1]
    assert seen[0] == "None"


def _explode(gradient: torch.Tensor) -> None:
    raise RuntimeError("on purpose")


@pytest.mark.covers("CD-283")
def test_device_mesh(world: World) -> None:
    """A one-dimensional mesh gives the group; a mesh together with a group, or one of two dimensions, is an error."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(world.device.type, (world.size,))
    together = wrap(world, linear(), device_mesh=mesh)
    assert together.device_mesh is mesh
    together(share(world, batches(world, 1)[0])).sum().backward()
    with pytest.raises(RuntimeError, match="Cannot specify both process_group and device_mesh"):
        wrap(world, linear(), device_mesh=mesh, process_group=world.group)
    if world.size % 2 == 0:
        square = init_device_mesh(world.device.type, (2, world.size // 2))
        with pytest.raises(RuntimeError, match="Only 1D device mesh is supported"):
            wrap(world, linear(), device_mesh=square)


def _bucket_config():
    module = sys.modules["torch.nn.parallel.distributed"]
    if not hasattr(module, "_BucketCapacityConfig"):
        pytest.skip(f"torch {torch.__version__} has no _BucketCapacityConfig")
    return module._BucketCapacityConfig


MIB = 1024 * 1024


@pytest.mark.world_size(1)
@pytest.mark.covers("CD-401", "CD-403", "CD-404")
@pytest.mark.parametrize(
    ("megabytes", "each", "capacity", "first"),
    [
        (None, None, 25, dist._DEFAULT_FIRST_BUCKET_BYTES),
        (None, [], 25, dist._DEFAULT_FIRST_BUCKET_BYTES),
        (1, None, 1, MIB),
        (1000, None, 1000, 1000 * MIB),
        (None, [7], 7, 7 * MIB),
        (None, [1, 2, 3], 3, 3 * MIB),
        (None, [3, 2, 1], 3, 3 * MIB),
        (None, [2, 2], 2, 2 * MIB),
        (50, [1, 2], 2, 2 * MIB),
    ],
    ids=str,
)
def test_bucket_capacity(megabytes: int | None, each: list[int] | None, capacity: int, first: int) -> None:
    """The requested size becomes a capacity in bytes, one for the first bucket, and one for each bucket of a list."""
    config = _bucket_config().create(
        bucket_cap_mb=megabytes, bucket_cap_mb_list=each, use_python_reducer=False
    )
    assert config.bucket_bytes_cap == capacity * MIB
    assert config.bucket_cap_mb == capacity
    assert tuple(config.per_bucket_bytes_caps) == tuple(mb * MIB for mb in each or [])
    assert config.has_custom_per_bucket_caps == bool(each)
    assert config.first_bucket_bytes_cap == first


@pytest.mark.world_size(1)
@pytest.mark.covers("CD-401")
def test_bucket_capacity_is_frozen() -> None:
    """The configuration cannot be changed, and a list does not go with the Python reducer."""
    kind = _bucket_config()
    with pytest.raises(AttributeError):
        kind.create(bucket_cap_mb=1, bucket_cap_mb_list=None, use_python_reducer=False).bucket_bytes_cap = 1
    with pytest.raises(AssertionError, match="python reducer is not supported"):
        kind.create(bucket_cap_mb=None, bucket_cap_mb_list=[1], use_python_reducer=True)


@pytest.mark.world_size(1)
@pytest.mark.covers("CD-402")
@pytest.mark.parametrize(
    ("megabytes", "each", "static", "search", "initial", "rebuilt"),
    [
        (None, [1, 2], False, False, [MIB, 2 * MIB], [MIB, 2 * MIB]),
        (None, [1, 2], True, True, [MIB, 2 * MIB], [MIB, 2 * MIB]),
        (None, None, True, False, [sys.maxsize], []),
        (None, None, False, False, [sys.maxsize], []),
        (None, None, False, True, [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * MIB], []),
        (10, None, False, True, [10 * MIB], []),
    ],
    ids=str,
)
def test_bucket_limits(
    megabytes: int | None,
    each: list[int] | None,
    static: bool,
    search: bool,
    initial: list[int],
    rebuilt: list[int],
) -> None:
    """The limits of the first assignment, and those of the rebuild."""
    config = _bucket_config().create(
        bucket_cap_mb=megabytes, bucket_cap_mb_list=each, use_python_reducer=False
    )
    got = config.compute_bucket_size_limits(static_graph=static, find_unused_parameters=search)
    assert [list(limits) for limits in got] == [initial, rebuilt]
