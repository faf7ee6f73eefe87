"""Doctor, leases and device health where processes really hold a device; both backends side by side."""

from __future__ import annotations

import json
import os

from gpu_holder import held_by_a_stranger

from disttest.model import Outcome

BOTH = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
def test_sum(world):
    x = torch.full((4,), world.rank + 1.0, device=world.device)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 4
    assert (world.backend, world.device.type) in (("gloo", "cpu"), ("nccl", "cuda"))
"""


def test_both_backends_in_one_run(cuda_lab):
    ended = cuda_lab.write(test_both=BOTH).run("run", ".", "--backend", "gloo,nccl")

    assert ended.exit_code == 0, ended.output
    assert [Outcome.PASSED] * 2 == [ended.result(f"test_sum[2x{name}]").outcome for name in ("gloo", "nccl")]


def test_the_doctor_proves_gpus_pairs_and_collectives(cuda_lab):
    """With little memory: the blocks are no larger than what is free allows."""
    ended = cuda_lab.run("doctor", "--level", "full", "--json", "doctor.json", EMULATED_CUDA_MEMORY_MB="512")

    assert ended.exit_code == 0, ended.output
    said = json.loads((cuda_lab.folder / "doctor.json").read_text())
    checks = {finding["check"] for finding in said["findings"] if finding["device"].startswith("GPU")}
    assert {"context", "matmul", "peer_copy", "collective_all_reduce", "collective_broadcast"} <= checks
    assert len(said["proved"]) == 2


def test_the_doctor_is_not_misled_where_any_python_asks_for_gpus_as_it_starts(cuda_lab):
    """No fork of such a process can use a GPU, which says nothing about the GPU."""
    cuda_lab.write(sitecustomize="import torch\ntorch.cuda.is_available()\n")
    path = os.pathsep.join([str(cuda_lab.folder), cuda_lab.environ["PYTHONPATH"]])

    ended = cuda_lab.run("doctor", PYTHONPATH=path)

    assert ended.exit_code == 0, ended.output
    assert "collective_all_reduce" in ended.output


def test_a_gpu_that_another_process_holds_is_not_taken(cuda_lab):
    with held_by_a_stranger(cuda_lab) as holder:
        one = BOTH.replace("world_size(2)", "world_size(1)").replace("3.0", "1.0")
        ended = cuda_lab.write(test_one=one).run("run", ".", "--gpus", "1")
        refused = cuda_lab.run("run", ".", "--gpus", "2", "--deadline", "3", "--results", "refused")

    assert ended.exit_code == 0, ended.output
    assert ended.result("test_sum").outcome is Outcome.PASSED
    assert refused.exit_code in (6, 124), refused.output
    assert f"pid {holder.pid}" in refused.output


NEEDS = """
import pytest, torch

@pytest.mark.needs_gpus(2)
def test_two():
    assert torch.ones(1, device="cuda:1").item() == 1

@pytest.mark.needs_gpus(3)
def test_three():
    raise AssertionError("this test was started")
"""


def test_an_ordinary_test_needs_its_gpus_as_well(cuda_lab):
    ended = cuda_lab.write(test_needs=NEEDS).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert ended.result("test_two").outcome is Outcome.PASSED
    three = ended.result("test_three")
    assert (Outcome.SKIPPED, "needs 3 GPUs, this run has 2") == (three.outcome, three.message)
