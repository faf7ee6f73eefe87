"""What the emulated GPUs promise, seen from torch's CUDA build; and that no symbol that torch imports is missing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cuda_environment import CudaEnvironment
from lab import Lab

from disttest.model import Outcome

PROGRAMS = Path(__file__).parents[1] / "support" / "emulated_programs.py"


def answers_of(cuda: CudaEnvironment, kind: str, folder: Path) -> dict[str, object]:
    ended = cuda.execute(str(PROGRAMS), kind, str(folder), state=folder, limit_s=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def devices(cuda, tmp_path_factory):
    return answers_of(cuda, "devices", tmp_path_factory.mktemp("devices"))


@pytest.fixture(scope="module")
def faults(cuda, tmp_path_factory):
    return answers_of(cuda, "faults", tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def ranks(cuda, tmp_path_factory):
    return answers_of(cuda, "ranks", tmp_path_factory.mktemp("ranks"))


# ---- devices


def test_without_emulated_devices_it_is_the_cuda_build_on_a_machine_without_a_driver(cuda):
    program = "import torch; print(torch.version.cuda, torch.cuda.is_available(), torch.cuda.device_count())"

    assert cuda.execute("-c", program, gpus=0).stdout.split() == ["13.0", "False", "0"]


def test_devices_are_visible_by_index_and_by_uuid(devices):
    assert devices["visible"] == {
        "1,0": ["01", "00"],
        "GPU-eeeeeeee-0000-0000-0000-000000000001": ["01"],
        "0,9,1": ["00"],  # up to the first that is not there
        "1,1": [],
        "": [],
    }


def test_streams_order_themselves_only_by_waiting(devices):
    assert devices["missing wait"] == [1.0, 4.0]


def test_an_event_is_done_when_its_stream_has_come_to_it(devices):
    assert devices["event"] == [False, True, True]


def test_memory_is_finite(devices):
    assert devices["out of memory"] == [True, "CUDA out of memory"]


def test_memory_is_shared_by_processes_and_nvml_shows_who_holds_it(devices):
    used_mb, held_mb, gone_when_it_ended = devices["held by another"]

    assert used_mb == sum(held_mb) == 64 + 64 + 512  # a context each, and a tensor
    assert gone_when_it_ended


def test_a_tensor_of_another_process_is_the_same_memory(devices):
    assert devices["ipc"] == [7.0, 7.0, 7.0]


def test_an_event_of_another_process_is_done_when_its_stream_has_come_to_it(devices):
    assert devices["event of another"] == [False, True]


def test_who_waits_for_an_event_waits_for_the_record_that_was_the_last_one_then(devices):
    assert devices["earlier record"] == [False, True, True]


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "depthwise", "softmax to float"])
def test_operators_that_only_gpus_have(devices, operator):
    assert devices["GPU-only operators"][operator] < 1e-5


def test_tensors_of_two_devices_do_not_mix(devices):
    assert "Expected all tensors to be on the same device" in devices["mixed devices"]


def test_what_is_not_there_refuses(devices):
    assert "operation not supported (emulated device)" in devices["graph"]


# ---- NCCL


def test_collectives_run_in_the_order_of_their_launch_whatever_the_stream(ranks):
    assert ranks["reduces"] == [12.0, 12.0]
    assert ranks["launch order"] == [[1.0, 10.0], [1.0, 10.0]]


def test_small_sends_do_not_wait_for_the_receiver(ranks):
    assert ranks["small sends"] == ["sent", [5.0, 5.0]]


def test_gathers_and_scatters_of_different_sizes(ranks):
    assert ranks["uneven"] == [[[[1.0], [2.0]], [3.0]]] * 2


def test_synchronised_batch_norm_is_the_plain_one_over_all_ranks(ranks):
    assert max(ranks["batch norm"]) < 1e-12


def test_two_ranks_cannot_share_a_gpu(ranks):
    assert all("invalid usage" in answer for answer in ranks["one GPU"])


# ---- faults


def test_without_a_fault_and_with_one_of_another_device_nothing_happens(faults):
    assert (faults["none"], faults["of another device"]) == (8.0, 8.0)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("sticky", "CUDA error: an illegal memory access was encountered"),
        ("after", "CUDA error: an illegal memory access was encountered"),
        ("assert", "CUDA error: device-side assert triggered"),
        ("oom", "CUDA out of memory"),
        ("vanish", "CUDA error: unknown error"),
        ("vanish in NVML", "GPU is lost"),
        ("hang", "ended by 14"),
    ],
)
def test_faults_of_a_device(faults, fault, seen):
    assert seen in faults[fault]


def test_memory_errors_and_xids_are_those_of_nvml(faults):
    assert faults["NVML"] == [[0, 0, 79], [3, 1, 0]]


@pytest.mark.parametrize(
    ("fault", "rank", "seen"),
    [
        ("NCCL error", 1, "remote process exited or there was a network error"),
        ("lost peer", 0, "Watchdog caught collective operation timeout"),
        ("lost peer", 1, "Watchdog caught collective operation timeout"),
        ("dead peer", 0, "remote process exited or there was a network error"),
    ],
)
def test_faults_of_nccl(ranks, fault, rank, seen):
    assert seen in ranks[fault][rank]


def test_a_slow_peer_makes_all_wait(ranks):
    assert min(ranks["slow peer"]) >= 0.9  # three times 0.3 s, of one rank


# ---- symbols


def symbols(library: Path, *options: str) -> set[str]:
    listed = subprocess.run(["nm", "-D", *options, str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}


PREFIXES = {"libcudart.so.13": ("cuda", "__cuda"), "libcuda.so.1": ("cu",), "libnccl.so.2": ("nccl",)}
OTHERS = ("cublas", "cusparse", "cusolver", "cufft", "curand", "cudnn", "cuFile")
"""Of other libraries, whose real ones are loaded, and which need no device until they are used."""


@pytest.mark.parametrize("library", PREFIXES)
def test_every_symbol_that_torch_imports_is_there(cuda, library):
    folder = cuda.torch / "lib"
    wanted = set().union(*(symbols(path, "--undefined-only") for path in folder.glob("*.so")))
    ours = {
        name for name in wanted if name.startswith(PREFIXES[library]) and not name.lower().startswith(OTHERS)
    }
    if library == "libcuda.so.1":  # the driver's names go on with a capital
        ours = {name for name in ours if name[2:3].isupper() and not name.startswith("cuFile")}

    assert len(ours) > 15
    assert ours - symbols(cuda.libraries / library, "--defined-only") == set()


def test_every_function_of_nvml_that_torch_looks_up_is_there(cuda):
    text = (cuda.torch / "lib" / "libc10_cuda.so").read_bytes()
    known = symbols(cuda.libraries / "libnvidia-ml.so.1", "--defined-only")

    names = {"nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetComputeRunningProcesses"}
    assert all(name.encode() in text for name in names)
    assert names <= known


# ---- the command

RANKS = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
def test_sum(world):
    x = torch.full((4,), float(world.rank + 1), device=world.device)
    dist.all_reduce(x)
    assert x.device.type == "cuda" and x.tolist() == [3.0] * 4 and dist.get_backend() == "nccl"
"""


def test_ranks_run_over_nccl(cuda_lab):
    ended = cuda_lab.write(test_ranks=RANKS).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert ended.result("test_sum").outcome is Outcome.PASSED


def test_the_command_emulates_gpus_and_every_report_says_so(cuda, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = cuda.environ(0, TMPDIR=str(temporary))
    lab = Lab(tmp_path, python=str(cuda.python), environ=environ).write(test_ranks=RANKS)

    ended = lab.run("run", ".", "--device", "emulated-cuda:2")

    assert ended.exit_code == 0, ended.output
    assert ended.result("test_sum").outcome is Outcome.PASSED
    assert "2 emulated GPUs: no test ran on a real GPU" in ended.output
    assert ended.run.hardware.gpus == ("Emulated GPU (host memory)",) * 2
    for report in ("results.json", "summary.md", "report.html"):
        assert "Emulated GPU" in (ended.results / report).read_text(), report
    assert not list(temporary.glob("disttest-emulated-gpus-*"))


def test_without_the_command_no_gpu_is_emulated(cuda, tmp_path):
    lab = Lab(tmp_path, python=str(cuda.python), environ=cuda.environ(0)).write(test_ranks=RANKS)

    ended = lab.pytest(".", "--disttest-device=emulated-cuda:2")

    assert ended.exit_code == 4, ended.output
    assert "disttest run --device emulated-cuda:2" in ended.output
