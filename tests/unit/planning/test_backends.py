"""The table of backends and accelerators."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disttest.errors import UsageError
from disttest.host.machine import CpuShare, Limits
from disttest.model import WorldShape
from disttest.options.run import RunOptions
from disttest.planning import backends
from disttest.planning.backends import (
    ACCELERATORS,
    BACKENDS,
    DEVICES,
    Accelerator,
    accelerated,
    backend_named,
    build_of,
    default_backend,
    is_accelerator,
)
from disttest.plugins.gpus import run_gpus
from disttest.plugins.gpus.machine import Gpu, GpuMachine
from disttest.runtime.controller import early_skips, expand
from disttest.runtime.controller.target_host import TargetHost


def test_every_accelerator_has_a_backend_that_runs_there_and_a_build() -> None:
    for accelerator in ACCELERATORS:
        row = backend_named(accelerator.backend)
        assert row in BACKENDS
        assert accelerator.device in row.devices
        assert build_of(row.name) == accelerator.build != ""
        assert default_backend(accelerator.device) == row.name
        assert is_accelerator(accelerator.device)


def test_names_are_unique() -> None:
    assert len({row.name for row in BACKENDS}) == len(BACKENDS)
    assert len(set(DEVICES)) == len(DEVICES) == len(ACCELERATORS) + 1


@pytest.mark.parametrize(
    ("device", "slices", "backend"),
    [("cuda", False, "nccl"), ("cuda", True, "gloo"), ("cpu", False, "gloo"), ("tpu", False, "gloo")],
)
def test_defaults(device: str, slices: bool, backend: str) -> None:
    assert default_backend(device, slices=slices) == backend


def test_one_without_a_row_runs_anywhere() -> None:
    row = backend_named("mine")

    assert (row.needs_accelerator, row.shares_devices, row.takes_slices, row.queues) == (
        False,
        True,
        True,
        False,
    )
    assert row.title == "mine"


def test_which_need_an_accelerator() -> None:
    assert accelerated(["gloo", "nccl", "mine", "xccl"]) == ("nccl", "xccl")


@pytest.mark.parametrize("row", [row for row in BACKENDS if row.needs_accelerator], ids=lambda row: row.name)
def test_all_that_need_an_accelerator_are_refused_alike(row) -> None:
    shape = WorldShape(size=2, backend=row.name, device=row.devices[0])

    assert "needs 2 GPUs" in TargetHost(gpus=1, device=row.devices[0]).refusal(shape)
    refusal = TargetHost(gpus=2, device=row.devices[0], slices=True).refusal(shape)
    assert refusal == (
        "" if row.takes_slices else f"{row.title} refuses MIG slices: --backend gloo runs there"
    )


def test_a_build_without_it_is_told_which_one_has_it() -> None:
    import torch.distributed as dist

    name = next(
        each.name for each in BACKENDS if each.needs_accelerator and not dist.is_backend_available(each.name)
    )
    item: Any = SimpleNamespace(stash=pytest.Stash())
    shape = WorldShape(size=2, backend=name, device="cuda")
    item.stash[expand._MADE] = expand._Made(shape=shape, marks=())

    with pytest.raises(UsageError) as refused:
        early_skips.check_backends([item], RunOptions(backend=(name,)))

    assert str(refused.value).startswith(
        f"--backend {name}: the installed torch has no such backend; it has gloo"
    )
    build = build_of(name)
    assert str(refused.value).endswith(f". {backend_named(name).title} needs {build}" if build else "")


def test_another_kind_of_accelerator_is_a_row_and_the_gpus_that_were_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = Accelerator(device="xpu", backend="xccl", build="an XPU build", visible="ZE_AFFINITY_MASK")
    found = tuple(Gpu(index=index, device=row.device) for index in range(3))
    machine = GpuMachine(
        cpu=CpuShare(online=4, affinity=4), limits=Limits(memory=1, memory_total=1), gpus=found
    )
    monkeypatch.setattr(backends, "ACCELERATORS", (*ACCELERATORS, row))
    monkeypatch.setattr(run_gpus, "detect_machine", lambda **_: machine)
    monkeypatch.setattr(run_gpus, "has_accelerator", lambda: True)
    monkeypatch.setenv("ZE_AFFINITY_MASK", "0,2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")

    devices = run_gpus.GpuDevices(RunOptions(plugin_options={"lease_dir": str(tmp_path)}))
    devices.acquire("this test", say=pytest.fail)
    devices.release()

    assert (2, "xpu") == (devices.size, devices.target_host().device)
    assert ["gpu:0", "gpu:2"] == [slot.name for slot in devices.slots]
    assert ("0,2", "7") == (os.environ["ZE_AFFINITY_MASK"], os.environ["CUDA_VISIBLE_DEVICES"])
    assert "xccl" == default_backend(devices.device)
    assert "0,2" == backends.visible_devices("0,2")["ZE_AFFINITY_MASK"]
