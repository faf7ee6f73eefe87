"""A launch in the Docker SDK's words."""

from __future__ import annotations

import pytest
from msgspec import structs

from disttest.extras.container.container_spec import GIB, Bind, LaunchSpec, choose_shm, container_arguments
from disttest.extras.container.gpus import GpuGrant, Way

SPEC = LaunchSpec(
    image="image:1",
    arguments=("ddp", "--", "-k", "$(touch x)"),
    working_dir="/home/me/work",
    binds=(Bind(path="/home/me/work"), Bind(path="/data", read_only=True)),
    user="1000:1000",
    shm_bytes=4 * GIB,
    time_limit_s=90.5,
)


def granted(way: Way, *devices: str) -> dict:
    return container_arguments(structs.replace(SPEC, gpus=GpuGrant(way=way, devices=devices)))


def test_the_container() -> None:
    arguments = container_arguments(SPEC)
    assert arguments["entrypoint"] == [
        "timeout", "--foreground", "--signal=TERM", "--kill-after=15", "91", "disttest",
    ]  # fmt: skip
    assert arguments["command"] == ["ddp", "--", "-k", "$(touch x)"]
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in arguments["mounts"]] == [
        ("/home/me/work", "/home/me/work", False),
        ("/data", "/data", True),
    ]
    assert (arguments["init"], arguments["ipc_mode"], arguments["shm_size"]) == (True, "private", 4 * GIB)
    assert (arguments["tty"], arguments["stdin_open"]) == (False, False)
    assert {(u.name, u.soft, u.hard) for u in arguments["ulimits"]} == {
        ("memlock", -1, -1),
        ("stack", 64 * 1024**2, 64 * 1024**2),
    }


def test_nothing_that_loses_logs_or_codes_and_no_shared_ipc() -> None:
    arguments = container_arguments(SPEC)
    assert not {"auto_remove", "remove", "detach", "privileged"} & set(arguments)
    assert arguments["ipc_mode"] != "host"


def test_cdi_names_devices_and_keeps_the_runtime_from_adding_more() -> None:
    arguments = granted(Way.CDI, "GPU-1", "GPU-2")
    (request,) = arguments["device_requests"]
    assert (request["Driver"], request["DeviceIDs"]) == (
        "cdi",
        ["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2"],
    )
    assert arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_runtime_reads_a_variable() -> None:
    arguments = granted(Way.RUNTIME, "GPU-1", "GPU-2")
    assert arguments["runtime"] == "nvidia"
    assert arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"


def test_a_request_has_a_count_or_ids_and_never_both() -> None:
    (everything,) = granted(Way.REQUEST, "all")["device_requests"]
    assert (everything["Count"], everything["DeviceIDs"]) == (-1, [])
    (some,) = granted(Way.REQUEST, "GPU-1")["device_requests"]
    assert (some["Count"], some["DeviceIDs"]) == (0, ["GPU-1"])


def test_podman_takes_cdi_names_as_devices() -> None:
    assert granted(Way.PODMAN, "all")["devices"] == ["nvidia.com/gpu=all"]


def test_without_gpus_an_nvidia_runtime_adds_none() -> None:
    arguments = container_arguments(SPEC)
    assert arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "device_requests" not in arguments


def test_a_variable_of_the_user_does_not_widen_the_gpus() -> None:
    spec = structs.replace(SPEC, environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert container_arguments(spec)["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_rootless_engines_are_not_asked_for_limits() -> None:
    assert "ulimits" not in container_arguments(structs.replace(SPEC, raise_limits=False))


def test_memory_and_processes_are_limited_and_swap_is_not_added() -> None:
    limited = container_arguments(structs.replace(SPEC, memory_bytes=GIB, pids=99))
    assert {name: limited[name] for name in ("mem_limit", "memswap_limit", "pids_limit")} == {
        "mem_limit": GIB, "memswap_limit": GIB, "pids_limit": 99,
    }  # fmt: skip
    unlimited = container_arguments(SPEC)
    assert unlimited["pids_limit"] == -1
    assert "mem_limit" not in unlimited


def test_root_keeps_its_capabilities_and_others_have_none() -> None:
    assert container_arguments(SPEC)["cap_drop"] == ["ALL"]
    assert "cap_drop" not in container_arguments(structs.replace(SPEC, user="0:0"))


def test_read_only_has_a_tmp_from_which_kernels_can_be_loaded() -> None:
    assert container_arguments(structs.replace(SPEC, read_only=True))["tmpfs"] == {"/tmp": "exec,mode=1777"}


@pytest.mark.parametrize(
    ("memory", "shm"), [(0, GIB), (GIB, GIB), (16 * GIB, 8 * GIB), (2000 * GIB, 64 * GIB)]
)
def test_shared_memory_follows_memory(memory: int, shm: int) -> None:
    assert choose_shm(memory) == shm
