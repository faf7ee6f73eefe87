"""Several ranks on one GPU: which worlds share, with which NCCL, and the MPS daemon that serves them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from lab import Ended
from resident import wait_until

from disttest.model import Outcome
from disttest.plugins.gpus.shared_gpus import CONTROL

FAKE_MPS = Path(__file__).parents[1] / "support" / "fake_mps"
RANKS = """
import os, subprocess
import pytest, torch, torch.distributed as dist

def sums(world):
    x = torch.full((1 << 12,), float(world.rank), device=world.device)
    dist.all_reduce(x)
    assert x[0].item() == sum(range(world.size))

@pytest.mark.world_size(1, 2, 4)
def test_sum(world):
    sums(world)
    print("MPS:", os.environ.get("CUDA_MPS_PIPE_DIRECTORY"), os.environ.get("NCCL_MAX_CTAS"))
    allocated = torch.cuda.get_device_properties(0).total_memory // world.size
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(allocated + (1 << 20), dtype=torch.uint8, device=world.device)
"""
DIES = """
@pytest.mark.world_size(4)
def test_a_rank_dies(world):
    sums(world)
    if world.rank == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()
    torch.cuda.synchronize()

@pytest.mark.world_size(4)
def test_after_it(world):
    sums(world)
    print("MPS:", os.environ.get("CUDA_MPS_PIPE_DIRECTORY"), os.environ.get("NCCL_MAX_CTAS"))
"""
WAITS = """
import time

@pytest.mark.world_size(2)
def test_waits(world):
    if world.rank == 0:
        open("begun", "w").close()
    time.sleep(600)
"""


def path_with_mps() -> str:
    return f"{FAKE_MPS}:{os.environ['PATH']}"


def test_worlds_with_more_ranks_than_gpus_share_them(one_gpu):
    ended = one_gpu.write(test_share=RANKS).run("run", ".", "--ranks-per-gpu", "4")

    assert ended.exit_code == 0, ended.output
    assert 3 == len(ended.run.tests)
    assert "MPS: None None" in ended.log("test_sum[4xnccl]", 3)
    notes = " ".join(ended.output.split())
    assert "ranks that share a GPU take turns on it, since MPS cannot be used" in notes
    assert (
        "2 tests ran with several ranks on one GPU: peer-to-peer copies, NVLink and real bandwidth" in notes
    )


def test_without_the_option_such_worlds_are_skipped(one_gpu):
    ended = one_gpu.write(test_share=RANKS).run("run", ".")

    skipped = ended.result("test_sum[4xnccl]")
    assert (Outcome.SKIPPED, "needs 4 GPUs for 4xnccl, this machine has 1") == (
        skipped.outcome,
        skipped.message,
    )
    assert "several ranks" not in ended.output


def test_an_older_nccl_is_a_skip_that_says_which_is_needed(one_gpu):
    older = {"EMULATED_NCCL_VERSION": "22907"}

    ended = one_gpu.write(test_share=RANKS).run("run", ".", "--ranks-per-gpu", "4", **older)

    skipped = ended.result("test_sum[2xnccl]")
    assert Outcome.SKIPPED == skipped.outcome
    assert (
        "--ranks-per-gpu needs NCCL 2.30, and 2.29.7 is loaded: install torch 2.14.1 or newer"
        in skipped.message
    )


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "Set NCCL_MULTI_RANK_GPU_ENABLE=1"),
        ({"EMULATED_NCCL_VERSION": "22907", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}, "Duplicate GPU detected"),
    ],
    ids=["not allowed", "too old"],
)
def test_emulated_nccl_refuses_as_nccl_does(cuda, environ, words):
    program = """
import os, sys, tempfile
import torch, torch.distributed as dist
store = tempfile.mktemp()
rank = int(os.fork() == 0)
dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2, device_id=torch.device("cuda:0"))
"""
    ended = cuda.execute("-c", program, gpus=1, **environ)

    assert ended.returncode == 1
    assert words in ended.stderr


def daemons() -> list[int]:
    """Pids of the stand-in's daemons."""
    listed = psutil.process_iter(["cmdline"])
    return [each.pid for each in listed if f"{FAKE_MPS}/{CONTROL}" in (each.info["cmdline"] or [])]


def pipes_of(ended: Ended, *names: str) -> list[list[str]]:
    """Folder of the MPS daemon and blocks of NCCL's kernels, as the first rank of each test had them."""
    return [ended.log(name, 0).split("MPS:")[1].split()[:2] for name in names]


def test_ranks_are_clients_of_one_daemon_of_the_run(one_gpu):
    ended = one_gpu.write(test_share=RANKS).run("run", ".", "--ranks-per-gpu", "4", PATH=path_with_mps())

    assert ended.exit_code == 0, ended.output
    alone, two, four = pipes_of(ended, "test_sum[1xnccl]", "test_sum[2xnccl]", "test_sum[4xnccl]")
    assert ["None", "None"] == alone
    assert two[0] == four[0]
    assert two[0].endswith("/mps1/pipe")
    assert ("4", "2") == (two[1], four[1])
    assert "take turns" not in ended.output
    assert [] == daemons()


def test_a_failure_is_followed_by_a_new_daemon(one_gpu):
    """A client that is killed in a kernel leaves its server unusable for seconds."""
    one_gpu.write(test_share=RANKS.replace("1, 2, 4", "4") + DIES)

    ended = one_gpu.run("run", ".", "--ranks-per-gpu", "4", PATH=path_with_mps())

    assert ended.exit_code == 1, ended.output
    assert "rank 1 of 4 was killed by SIGKILL" in ended.result("test_a_rank_dies").message
    before, after = pipes_of(ended, "test_sum[4xnccl]", "test_after_it[4xnccl]")
    assert ("mps1", "mps2") == (Path(before[0]).parent.name, Path(after[0]).parent.name)
    assert [] == daemons()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_daemon_ends_with_the_run(one_gpu, signum):
    one_gpu.write(test_waits=RANKS + WAITS)
    process = one_gpu.start(
        "run", "test_waits.py", "-k", "waits", "--ranks-per-gpu", "2", PATH=path_with_mps()
    )
    wait_until((one_gpu.folder / "begun").exists)
    assert 1 == len(daemons())

    process.send_signal(signum)

    process.communicate(timeout=60)
    wait_until(lambda: not daemons())
