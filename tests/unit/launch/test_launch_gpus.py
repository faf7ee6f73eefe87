"""Which GPUs a launch asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.errors import DisttestError, NotEnoughDevices, UsageError
from disttest.extras.container.gpus import EngineGpus, GpuGrant, HostGpu, Way, choose_gpus

HOST = tuple(HostGpu(index=index, uuid=f"GPU-{index}aaa") for index in range(4))
CDI = EngineGpus(cdi=("nvidia.com/gpu=all",), runtime=True)
RUNTIME = EngineGpus(runtime=True)
PLAIN = EngineGpus()


def choose(asked: str, **changes: object) -> GpuGrant:
    arguments: dict = {"share": None, "host": HOST, "engine": CDI} | changes
    return choose_gpus(asked, **arguments)


def test_all_are_named_by_uuid() -> None:
    assert choose("all") == GpuGrant(way=Way.CDI, devices=tuple(gpu.uuid for gpu in HOST))


def test_an_engine_elsewhere_is_asked_for_all() -> None:
    assert choose("all", host=None).devices == ("all",)


@pytest.mark.parametrize(
    ("engine", "way"),
    [
        (CDI, Way.CDI),
        (RUNTIME, Way.RUNTIME),
        (PLAIN, Way.REQUEST),
        (EngineGpus(podman=True, runtime=True), Way.PODMAN),
    ],
)
def test_the_way_is_the_engines(engine: EngineGpus, way: Way) -> None:
    assert choose("all", engine=engine).way is way


def test_a_runners_share_is_kept() -> None:
    assert choose("auto", share="GPU-2aaa").devices == ("GPU-2aaa",)
    assert choose("all", share="1,3").devices == ("GPU-1aaa", "GPU-3aaa")
    assert choose("1", share="1,3").devices == ("GPU-1aaa",)


def test_a_share_is_never_widened() -> None:
    with pytest.raises(
        UsageError, match=r"GPU-0aaa is not in this runner's share \(NVIDIA_VISIBLE_DEVICES=1,3\)"
    ):
        choose("device=0", share="1,3")
    with pytest.raises(NotEnoughDevices, match="3 GPUs requested, but only 2 available"):
        choose("3", share="1,3")
    assert choose("auto", share="void").devices == ()


@pytest.mark.parametrize("engine", [PLAIN, RUNTIME, CDI])
def test_no_gpu_means_cpu_and_a_warning(engine: EngineGpus) -> None:
    grant = choose("auto", host=(), engine=engine)
    assert grant.way is Way.NONE
    assert "running on the CPU" in grant.warning


def test_gpus_without_a_toolkit_are_pointed_out() -> None:
    assert "install nvidia-container-toolkit" in choose("auto", engine=PLAIN).warning


def test_none_asks_for_none_and_does_not_warn() -> None:
    assert choose("none") == GpuGrant()


@pytest.mark.parametrize("asked", ["all", "1"])
def test_required_gpus_have_to_be_there(asked: str) -> None:
    with pytest.raises(NotEnoughDevices, match="1 GPU requested, but only 0 available"):
        choose(asked, host=())


@pytest.mark.parametrize("asked", ["0", "x", "GPU-1;rm", "device=", "-1", "$(id)"])
def test_nonsense_is_refused(asked: str) -> None:
    with pytest.raises(UsageError):
        choose(asked)


@given(
    asked=st.sampled_from(["auto", "all", "1", "2", "device=0", "1,2", "GPU-0aaa", "GPU-3aaa,GPU-1aaa"]),
    share=st.lists(st.sampled_from([gpu.uuid for gpu in HOST]), unique=True).map(",".join),
    engine=st.sampled_from([PLAIN, RUNTIME, CDI]),
)
def test_whatever_is_asked_for_stays_within_the_share(asked: str, share: str, engine: EngineGpus) -> None:
    try:
        grant = choose(asked, share=share, engine=engine)
    except DisttestError:
        return
    assert set(grant.devices) <= set(share.split(","))
