"""DDP's records: logging data, bucket sizes, profiler events, environment."""

from __future__ import annotations

import json
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from disttest.testing.world import World

from ..ranks import exchange
from .models import DOUBLE, Perceptron, TwoHeads, linear
from .training import batches, require_option, share, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


@pytest.mark.covers("CD-001")
def test_relevant_environment(capfd: pytest.CaptureFixture[str]) -> None:
    """The dump prints one line per relevant variable, its value or N/A, and no line for others."""
    nn.parallel.distributed._dump_DDP_relevant_env_vars()
    lines = capfd.readouterr().out.split()
    for name in (
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "NCCL_TOPO_DUMP_FILE",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ):
        assert f"env:{name}={os.environ.get(name, 'N/A')}" in lines
    assert not any(line.startswith("env:NO_SUCH_VARIABLE") for line in lines)


def _train(world: World, together: nn.Module, steps: int, *, width: int = 2) -> None:
    for batch in batches(world, steps, width=width):
        together(share(world, batch)).square().mean().backward()


@pytest.mark.covers("CD-223", "CD-224")
def test_facts_of_construction(world: World) -> None:
    """Size, rank, module, devices, options, parameter counts and bucket sizes are as they were given."""
    together = wrap(world, Perceptron())
    logged = together._get_ddp_logging_data()
    trainable = [p for p in together.parameters() if p.requires_grad]
    size = sum(p.nbytes for p in trainable)
    on_gpu = world.device.type != "cpu"
    expected = {
        "world_size": world.size,
        "rank": world.rank,
        "module_name": "Perceptron",
        "device_ids": str(world.device.index) if on_gpu else "",
        "output_device": world.device.index if on_gpu else -1,
        "broadcast_buffers": 1,
        "bucket_cap_bytes": 25 * 1024 * 1024,
        "find_unused_parameters": 0,
        "gradient_as_bucket_view": 0,
        "backend_name": world.backend,
        "dtypes": "double",
        "total_parameter_size_bytes": size,
        "num_parameter_tensors": len(trainable),
        "bucket_sizes": str(size),
        "master_addr": os.environ["MASTER_ADDR"],
        "master_port": os.environ["MASTER_PORT"],
        "torch_distributed_debug": os.environ.get("TORCH_DISTRIBUTED_DEBUG", "N/A"),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES", "N/A"),
    }
    assert {name: logged.get(name) for name in expected} == expected
    if world.backend == "gloo":
        assert logged["gloo_socket_ifname"] == os.environ.get("GLOO_SOCKET_IFNAME", "N/A")
        assert not [name for name in logged if name.startswith("nccl_") and logged[name] not in ("N/A", "")]


@pytest.mark.covers("CD-223", "CD-224")
def test_facts_of_training(world: World) -> None:
    """On sampled steps the step's number and its times are recorded, in an order that makes sense."""
    together = wrap(world, Perceptron())
    together._set_ddp_runtime_logging_sample_rate(2)
    for index in range(20):
        _train(world, together, 1)
        logged = together._get_ddp_logging_data()
        if index > 0 and (index < 10 or index % 2 == 0):
            assert logged["iteration"] == index
            for name in ("forward_compute_time", "backward_compute_time", "backward_comm_time"):
                assert logged[name] >= 1, name
            assert logged["backward_compute_comm_overlap_time"] <= logged["backward_compute_time"]
            assert logged["backward_compute_comm_overlap_time"] <= logged["backward_comm_time"]
        elif index >= 10:
            assert logged["iteration"] == index - 1
    assert logged["iteration"] == 18
    assert logged["unused_parameter_size"] == 0
    assert logged["has_rebuilt_buckets"] == 1
    assert logged["prev_iteration_grad_ready_order_indices"].replace(" ", "") == "2,1,0"
    assert logged["rebuilt_per_bucket_param_indices"].split() == ["2", "1", "0"]
    assert logged["rebuilt_bucket_sizes"] == str(logged["total_parameter_size_bytes"])
    for name in ("avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time"):
        assert logged[name] >= 1, name
    started = logged["forward_compute_time_start"], logged["backward_compute_time_start"]
    assert started[0] <= started[1] <= logged["backward_comm_time_start"] <= logged["backward_comm_time_end"]
    assert logged["backward_compute_time_start"] <= logged["backward_compute_time_end"]


@pytest.mark.covers("CD-223")
def test_buckets_of_two_types(world: World) -> None:
    """Two dtypes give two buckets, and both are named."""
    model = nn.Sequential(nn.Linear(100, 200, bias=False), nn.Linear(200, 50, bias=False, dtype=DOUBLE))
    logged = wrap(world, model, bucket_cap_mb=1.5)._get_ddp_logging_data()
    assert sorted(logged["dtypes"].split(", ")) == ["double", "float"]
    assert len(logged["bucket_sizes"].split(",")) == 2
    assert sum(map(int, logged["bucket_sizes"].split(","))) == sum(p.nbytes for p in model.parameters())


@pytest.mark.covers("CD-225")
def test_bucket_sizes_one_by_one(world: World) -> None:
    """``bucket_cap_mb_list`` gives each bucket a separate size; without it the list is empty."""
    require_option("bucket_cap_mb_list")
    together = wrap(world, Perceptron(), bucket_cap_mb_list=[1, 2])
    assert list(together.bucket_bytes_cap_list) == [1024 * 1024, 2 * 1024 * 1024]
    _train(world, together, 2)
    assert list(wrap(world, Perceptron()).bucket_bytes_cap_list) == []


def _torch_profiler():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)


def _names(profiler: object) -> list[str]:
    events = profiler.events() if isinstance(profiler, torch.profiler.profile) else profiler.function_events
    return [event.name for event in events]


@pytest.mark.covers("CD-226", "CD-227")
@pytest.mark.parametrize(
    "make", [torch.autograd.profiler.profile, _torch_profiler], ids=["autograd", "torch"]
)
def test_profiled_training(world: World, make: object) -> None:
    """Each of six steps shows one all-reduce; the rebuild of buckets shows a broadcast; the search shows once a step."""
    together = wrap(world, nn.Sequential(linear(), linear()))
    with make() as profiler:
        _train(world, together, 6, width=6)
    names = _names(profiler)
    assert names.count(f"{world.backend}:all_reduce") == 6
    assert names.count(f"{world.backend}:broadcast") >= 1
    searching = wrap(world, TwoHeads(unused=True), find_unused_parameters=True)
    for step, batch in enumerate(batches(world, 4)):
        if step < 3:
            sum(out.sum() for out in searching(share(world, batch))).backward()
            continue
        with make() as profiler:
            sum(out.sum() for out in searching(share(world, batch))).backward()
    assert f"{world.backend}:all_reduce" in _names(profiler)
    assert sum(name.endswith("search_unused_parameters") for name in _names(profiler)) == 1


@pytest.mark.backend("nccl")
@pytest.mark.covers("CD-227", "CD-228")
def test_communication_records(world: World, tmp_path) -> None:
    """NCCL's records in the trace carry collective, dtype, group and sizes."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    together = wrap(world, nn.Sequential(linear(), linear()))
    with torch.profiler.profile(activities=kinds, record_shapes=True) as profiler:
        _train(world, together, 3, width=6)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    records = [e["args"] for e in trace["traceEvents"] if e.get("name") == "record_param_comms"]
    collectives = [record for record in records if record["Collective name"] != "wait"]
    assert any(record["Collective name"] == "allreduce" for record in collectives)
    for record in collectives:
        assert record["dtype"]
        assert record["Process Group Description"] == "default_pg"
        assert record["Process Group Ranks"]
        assert record["Group size"] == world.size
        assert min(record["In msg nelems"], record["Out msg nelems"], record["Global rank start"]) >= 0


@pytest.mark.covers("CD-223")
def test_ranks_log_the_same_shape(world: World) -> None:
    """Apart from rank and times, all ranks record the same."""
    together = wrap(world, Perceptron())
    _train(world, together, 2)
    logged = together._get_ddp_logging_data()
    own = {"rank", "device_ids", "output_device", "cuda_visible_devices"}
    common = {name: value for name, value in logged.items() if "time" not in name and name not in own}
    assert all(other == common for other in exchange(world, common))


@pytest.mark.covers("CD-223")
@pytest.mark.parametrize("level", ["OFF", "INFO", "DETAIL"])
def test_debug_levels_train_the_same(world: World, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training gives one result at every debug level."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", level)
    dist.set_debug_level_from_env()
    try:
        together = wrap(world, linear(1, 1))
        together(torch.full((1, 1), float(world.rank), dtype=DOUBLE, device=world.device)).sum().backward()
        assert together.module.weight.grad.item() == pytest.approx((world.size - 1) / 2)
        assert together._get_ddp_logging_data()["torch_distributed_debug"] == level
    finally:
        monkeypatch.undo()
        dist.set_debug_level_from_env()
