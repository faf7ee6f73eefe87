"""What is found on a machine, and what the advice is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from disttest.host.findings import Grade
from disttest.host.machine import CpuShare, Limits
from disttest.plugins.gpus.device_findings import (
    driver_too_old,
    judge_gpu,
    judge_machine,
    torch_refusal,
)
from disttest.plugins.gpus.machine import Fabric, Gpu, GpuMachine, GpuProcess, MigSlice
from disttest.plugins.gpus.machine_advice import MACHINE_ADVICE, cuda_version_of
from disttest.plugins.gpus.torch_facts import TorchFacts

GIB = 1 << 30
TORCH = TorchFacts(
    version="2.13.0+cu130",
    cuda="13.0",
    nccl="2.28.9",
    architectures=("sm_75", "sm_80", "sm_90", "sm_100", "compute_120"),
    backends=("gloo", "nccl"),
    device_type="cuda",
)
GPU = Gpu(
    index=3,
    uuid="GPU-3",
    bus_id="00000000:1A:00.0",
    name="NVIDIA H100",
    memory_total=80 * GIB,
    compute_capability="9.0",
    ecc_enabled=True,
    compute_mode="default",
    pcie_width=16,
    pcie_max_width=16,
)
MACHINE = GpuMachine(
    cpu=CpuShare(online=8, affinity=8),
    limits=Limits(memory=64 * GIB, memory_total=64 * GIB, shm_size=2 * GIB, open_files=65536),
    gpus=(GPU, msgspec.structs.replace(GPU, index=4, uuid="GPU-4")),
    driver="580.65",
    cuda_driver="13.0",
)


def with_gpu(**facts):
    return {f.check: f for f in judge_gpu(msgspec.structs.replace(GPU, **facts), TORCH)}


def with_machine(torch=TORCH, **facts):
    found = judge_machine(msgspec.structs.replace(MACHINE, **facts), torch)
    return {f.check: f for f in found if f.device == "machine"}


def with_limits(**facts):
    return with_machine(limits=msgspec.structs.replace(MACHINE.limits, **facts))


def test_a_healthy_machine_has_no_complaints():
    findings = judge_machine(MACHINE, TORCH)

    assert {finding.grade for finding in findings} == {Grade.OK}
    assert {finding.device for finding in findings} == {
        "machine",
        "GPU 3 (GPU-3, 00000000:1A:00.0)",
        "GPU 4 (GPU-4, 00000000:1A:00.0)",
    }


@pytest.mark.parametrize(
    ("facts", "check", "grade", "words", "slug"),
    [
        ({"fault": "GPU is lost"}, "answers", "broken", "GPU is lost", "gpu-lost"),
        ({"fault": "GPU requires reset"}, "answers", "broken", "reset", "gpu-needs-reset"),
        ({"ecc_uncorrected": 2}, "memory_errors", "broken", "2 uncorrected", "gpu-memory-errors"),
        ({"remap_pending": True}, "memory_errors", "broken", "wait to be remapped", "gpu-memory-errors"),
        ({"remap_failed": True}, "memory_errors", "broken", "could not be remapped", "gpu-memory-errors"),
        ({"retired_pages_pending": True}, "memory_errors", "broken", "pages wait", "gpu-memory-errors"),
        ({"compute_mode": "prohibited"}, "compute_mode", "broken", "prohibits", "compute-mode"),
        ({"compute_mode": "exclusive_process"}, "compute_mode", "warning", "one process", "compute-mode"),
        ({"mig_enabled": True}, "mig", "broken", "there is no slice", "mig-mode"),
        ({"throttle": ("power brake",)}, "clocks", "warning", "power brake", "slow-gpu"),
        ({"pcie_width": 4}, "pcie", "warning", "x4 instead of x16", "slow-gpu"),
        ({"nvlinks_active": 16, "nvlinks_down": 2}, "nvlink", "warning", "2 of 18", "nvlink-down"),
        ({"processes": (GpuProcess(pid=7, name="train"),)}, "use", "warning", "train (pid 7)", "gpu-busy"),
        ({"memory_used": 40 * GIB}, "use", "warning", "cannot be seen from here", "gpu-busy"),
        ({"compute_capability": "7.0"}, "kernels", "broken", "no kernels for sm_70", "torch-without-kernels"),
    ],
)
def test_what_a_gpu_may_have(facts, check, grade, words, slug):
    finding = with_gpu(**facts)[check]

    assert (finding.grade, finding.advice.slug) == (grade, slug)
    assert words in finding.message


def test_accelerators_of_other_vendors_are_named():
    """Ranks compute on CUDA (and ROCm) devices or the CPU; the doctor says what else torch sees."""
    xpu = TorchFacts(version="2.13.0+xpu", device_type="xpu", devices=("Intel Max 1550",), backends=("xccl",))

    assert with_machine(torch=xpu, gpus=(), driver="")["torch"].message == (
        "torch 2.13.0+xpu, xccl, Intel Max 1550"
    )


def test_mig_slices_say_that_nccl_refuses_them():
    finding = with_gpu(mig_enabled=True, slices=(MigSlice(uuid="MIG-1"),))["mig"]

    assert (finding.grade, finding.advice.slug) == (Grade.WARNING, "nccl-one-gpu-per-rank")
    assert "gloo only" in finding.message


@pytest.mark.parametrize("capability", ["8.0", "8.6", "9.0", "10.3", "12.1"])
def test_kernels_that_fit(capability):
    """8.6 runs what was built for 8.0; 12.1 compiles the PTX of 12.0."""
    assert with_gpu(compute_capability=capability)["kernels"].grade is Grade.OK


@pytest.mark.parametrize(
    ("facts", "check", "grade", "words", "slug"),
    [
        ({"nvml_error": "Unknown Error", "gpus": ()}, "nvml", "broken", "Unknown Error", "nvml-lost"),
        (
            {"nvml_error": "RM has detected an NVML/RM version mismatch.", "gpus": ()},
            "nvml",
            "broken",
            "mismatch",
            "driver-library-mismatch",
        ),
        (
            {"nvml_error": "nvmlInit: the NVML probe gave no answer within 15 s", "gpus": ()},
            "nvml",
            "broken",
            "no answer",
            "nvml-hangs",
        ),
        ({"device_nodes": ("/dev/nvidia0",), "gpus": ()}, "nvml", "broken", "shows no GPU", "nvml-lost"),
        ({"gpus": ()}, "nvml", "warning", "this container sees no GPU", "no-gpu-in-container"),
        ({"cuda_driver": "12.4"}, "torch", "broken", "the driver serves up to 12.4", "driver-too-old"),
        ({"torch": TorchFacts(error="importing torch: …")}, "torch", "broken", "importing", "torch-unusable"),
        (
            {"torch": msgspec.structs.replace(TORCH, numpy_error="No module named 'numpy'")},
            "numpy",
            "broken",
            "torch cannot use NumPy: No module",
            "numpy-unusable",
        ),
        ({"torch": TorchFacts(version="2.13.0+cpu")}, "torch", "warning", "without CUDA", "torch-unusable"),
        (
            {
                "fabrics": (Fabric(name="mlx5_0"),),
                "limits": msgspec.structs.replace(MACHINE.limits, memlock=65536),
            },
            "memlock",
            "warning",
            "64 KiB",
            "memlock",
        ),
    ],
)
def test_what_a_machine_may_have(facts, check, grade, words, slug):
    finding = with_machine(**facts)[check]

    assert (finding.grade, finding.advice.slug) == (grade, slug)
    assert words in finding.message


def test_the_found_version_is_explained():
    error = "The NVIDIA driver on your system is too old (found version 11040). Please update"

    finding = with_machine(torch=msgspec.structs.replace(TORCH, error=error))["torch"]

    assert finding.message.endswith("(the driver serves CUDA 11.4)")
    assert finding.advice.slug == "driver-too-old"


@pytest.mark.parametrize(
    ("facts", "check", "grade", "slug"),
    [
        ({"shm_size": 64 << 20}, "shared_memory", "broken", "nccl-shared-memory"),
        ({"shm_size": GIB, "shm_used": GIB - 1}, "shared_memory", "broken", "nccl-shared-memory"),
        ({"memory": 500 << 20}, "memory", "warning", "small-memory"),
        ({"open_files": 256}, "open_files", "warning", "open-files"),
    ],
)
def test_limits(facts, check, grade, slug):
    finding = with_limits(**facts)[check]

    assert (finding.grade, finding.advice.slug) == (grade, slug)


def test_small_shared_memory_without_two_gpus_is_a_warning():
    limits = msgspec.structs.replace(MACHINE.limits, shm_size=64 << 20)

    assert with_machine(limits=limits, gpus=(), driver="")["shared_memory"].grade is Grade.WARNING


def test_no_gpu_and_no_driver_is_fine():
    found = with_machine(gpus=(), driver="", torch=TorchFacts(version="2.13.0+cpu", backends=("gloo",)))

    assert {finding.grade for finding in found.values()} == {Grade.OK}


@pytest.mark.parametrize(
    ("message", "slug"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "gpu-toolkit-missing"),
        ("Failed to initialize NVML: Unknown Error", "nvml-lost"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver-library-mismatch"),
        ("The NVIDIA driver on your system is too old (found version 11040).", "driver-too-old"),
        (
            "Error 803: system has unsupported display driver",
            "stale-compat-libcuda",
        ),
        (
            "nvidia-container-cli: unsatisfied condition: cuda>=13.0",
            "unsatisfied-condition",
        ),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000", "nccl-one-gpu-per-rank"),
        ("Error while creating shared memory segment /dev/shm/nccl-x: No space left", "nccl-shared-memory"),
        ("CUDA error: uncorrectable ECC error encountered", "gpu-memory-errors"),
        (
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "gpu-busy",
        ),
    ],
)
def test_known_messages_have_advice(message, slug):
    assert MACHINE_ADVICE.find(message).slug == slug


def test_an_unknown_message_has_none():
    assert MACHINE_ADVICE.find("assert 1 == 2") is None


def test_locked_memory_matters_with_rdma_only():
    limits = msgspec.structs.replace(MACHINE.limits, memlock=65536)

    assert with_machine(limits=limits)["memlock"].grade is Grade.OK
    finding = with_machine(limits=limits, fabrics=(Fabric(name="mlx5_0"),))["memlock"]
    assert (finding.grade, finding.advice.slug) == (Grade.WARNING, "memlock")


@pytest.mark.parametrize(("number", "version"), [("11040", "11.4"), ("13000", "13.0"), ("9000", "9.0")])
def test_cuda_version(number, version):
    assert cuda_version_of(f"too old (found version {number})") == version


def test_every_advice_has_its_section():
    page = (Path(__file__).parents[3] / "docs" / "errors.md").read_text()

    missing = [slug for slug in MACHINE_ADVICE.slugs if f"\n### {slug}\n" not in page]

    assert missing == []


SEES_BOTH = msgspec.structs.replace(TORCH, devices=("NVIDIA H100", "NVIDIA H100"))


@pytest.mark.parametrize(
    ("machine", "torch", "expected"),
    [
        ({}, SEES_BOTH, ""),
        (
            {"driver": "550.54.15", "cuda_driver": "12.4"},
            TORCH,
            "torch 2.13.0+cu130 was built for CUDA 13.0, driver 550.54.15 serves up to CUDA 12.4: "
            "the driver is too old. Update the driver of the host, or use an image with an older CUDA. "
            "(disttest explain driver-too-old)",
        ),
        (
            {},
            msgspec.structs.replace(TORCH, devices=("NVIDIA H100",)),
            "torch sees 1 of the 2 GPUs of this run (torch 2.13.0+cu130 was built for CUDA 13.0, "
            "driver 580.65 serves up to CUDA 13.0). Run disttest doctor to find the GPU that does not answer; "
            "leave it out with --gpus, or reboot the host. (disttest explain gpu-missing-in-torch)",
        ),
        (
            {},
            msgspec.structs.replace(TORCH, error="CUDA error: unknown error"),
            "torch 2.13.0+cu130 was built for CUDA 13.0; it cannot use the GPUs of this run: CUDA error: unknown "
            "error (driver 580.65 serves up to CUDA 13.0). Install torch for this machine, and see the message. "
            "(disttest explain torch-unusable)",
        ),
        (
            {},
            TorchFacts(version="2.13.0+cpu"),
            "torch 2.13.0+cpu was built without CUDA and cannot use the GPUs of this run: "
            "install a build for CUDA, or use --device cpu",
        ),
    ],
    ids=["it can", "old driver", "a GPU is missing", "an error", "built without CUDA"],
)
def test_why_torch_cannot_use_the_gpus_of_a_run(machine, torch, expected):
    assert torch_refusal(msgspec.structs.replace(MACHINE, **machine), torch, needed=2) == expected


def test_a_driver_is_judged_without_asking_torch():
    assert driver_too_old(MACHINE, "13.2") == ""
    assert driver_too_old(MACHINE, "") == ""
    assert driver_too_old(MACHINE, "14.0").startswith(
        "the installed torch was built for CUDA 14.0, driver 580.65 serves up to CUDA 13.0: the driver is too old."
    )
