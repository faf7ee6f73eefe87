"""The GPU rows of the fault matrix: what each fault is called, whose it is, and that the next world is healthy."""

from __future__ import annotations

import pytest
from lab import Ended

from disttest.model import Cause, Outcome

TESTS = """
import os, pathlib, signal
import pytest, torch, torch.distributed as dist

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(5)]

@pytest.fixture(autouse=True)
def ones(world):
    x = torch.ones(4, device=world.device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    return x

def cause(kind, world):
    dist.barrier()
    if world.rank == 0:
        pathlib.Path(f"{kind}.{os.getpid()}").touch()

@pytest.mark.timeout(60)
def test_a_rank_never_joins(world, ones):
    if world.rank == 0:
        dist.all_reduce(ones)
        dist.all_reduce(ones)

def test_healthy_1(ones): pass

@pytest.mark.timeout(60)
def test_mismatched(world, ones):
    dist.all_reduce(ones) if world.rank == 0 else dist.broadcast(ones, 0)

def test_healthy_2(ones): pass

def test_aborts(world, ones):
    if world.rank == 1:
        os.abort()
    dist.all_reduce(ones)

def test_healthy_3(ones): pass

def test_is_killed(world, ones):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(ones)

def test_healthy_4(ones): pass

def test_leaves_a_broken_context(world, ones):
    cause("sticky", world)

def test_healthy_5(ones): pass

def test_runs_out_of_memory(world, ones):
    if world.rank == 1:
        torch.empty(1 << 40, device=world.device)

def test_healthy_6(ones): pass

def test_device_hangs(world, ones):
    cause("hang", world)

def test_healthy_7(ones): pass
"""


@pytest.fixture(scope="module")
def matrix(cuda_labs) -> Ended:
    """One run of all of them, on two emulated GPUs."""
    lab = cuda_labs(gpus=2)
    faults = (f"{kind} device=0 when={lab.folder / kind}.%p" for kind in ("sticky", "hang"))
    return lab.write(test_faults=TESTS).run("run", ".", EMULATED_CUDA_FAULTS="; ".join(faults))


CASES = {
    "test_a_rank_never_joins": (
        Outcome.FAILED,
        1,
        "deadlock: rank 0 waits in all_reduce #2 (in the queue of its GPU since test_faults.py:22)",
    ),
    "test_mismatched": (
        Outcome.FAILED,
        None,
        "deadlock: rank 0 waits in all_reduce #3 (in the queue of its GPU since test_faults.py:29)",
    ),
    "test_aborts": (Outcome.ERROR, 1, "rank 1 of 2 was killed by SIGABRT in call, before it reported"),
    "test_is_killed": (Outcome.ERROR, 1, "rank 1 of 2 was killed by SIGKILL in call, before it reported"),
    "test_leaves_a_broken_context": (
        Outcome.ERROR,
        0,
        "rank 0 of 2 failed in teardown: Failed: the GPU reported an error after the test: CUDA error: an illegal memory "
        "access was encountered",
    ),
    "test_runs_out_of_memory": (
        Outcome.FAILED,
        1,
        "rank 1 of 2 failed: torch.OutOfMemoryError: CUDA out of memory",
    ),
    "test_device_hangs": (
        Outcome.FAILED,
        0,
        "the test finished, its tear-down hangs: "
        "rank 0 waits for its GPU to finish what the test has started there; "
        "rank 1 had finished (timed out after 5 s)",
    ),
}


SEEN_BY_NCCL_FIRST = {
    "test_leaves_a_broken_context": "rank 0 of 2 was killed by SIGABRT in teardown, before it reported: "
    "c10::DistBackendError: [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: "
    "CUDA error: an illegal memory access was encountered"
}
"""What is said where NCCL's watchdog looks before the test's own wait for the GPU does, and ends the process."""


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_and_its_rank_is(matrix, name):
    outcome, culprit, words = CASES[name]

    result = matrix.result(name)

    assert words in result.message or SEEN_BY_NCCL_FIRST.get(name, words) in result.message
    assert (outcome, culprit, Cause.TEST) == (result.outcome, result.culprit, result.cause)


@pytest.mark.parametrize("number", range(1, 8))
def test_the_next_world_is_healthy(matrix, number):
    assert matrix.result(f"test_healthy_{number}").outcome is Outcome.PASSED


BROKEN_COMMUNICATOR = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
@pytest.mark.timeout(30)
def test_nccl_reports_an_error(world):
    x = torch.ones(4, device=world.device)
    while True:
        dist.all_reduce(x)
        torch.cuda.synchronize()

@pytest.mark.world_size(1)
def test_healthy(world):
    assert torch.ones(1, device=world.device).item() == 1
"""


def test_an_asynchronous_error_of_nccl_is_its_rank_s(cuda_lab):
    """The call raises, or torch's watchdog ends the process first; its words are in the message in both cases."""
    ended = cuda_lab.write(
        test_nccl=BROKEN_COMMUNICATOR
    ).run(
        "run",
        ".",
        EMULATED_CUDA_FAULTS="nccl-error rank=0 after=3",
        TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="200",  # else it sleeps for a minute first, for others to write dumps
    )

    result = ended.result("test_nccl_reports_an_error")
    assert result.outcome.is_bad
    assert (0, Cause.TEST) == (result.culprit, result.cause)
    assert "DistBackendError: " in result.message
    assert "remote process exited or there was a network error" in result.message
    assert ended.result("test_healthy").outcome is Outcome.PASSED


HOSTED = """
import os, pathlib, torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestHosted(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_leaves_a_broken_context(self):
        torch.ones(1, device=f"cuda:{self.rank}")  # and device 0 stays the current one
        if self.rank == 1:
            pathlib.Path(os.environ["GONE"]).touch()
"""


def test_a_rank_of_torchs_classes_waits_for_its_gpu_at_the_end(cuda_lab):
    """What fails there is a failure of this test, under strict verdicts; torch's own harness does not look."""
    gone = cuda_lab.folder / "gone"
    environ = {"EMULATED_CUDA_FAULTS": f"sticky device=1 when={gone}", "GONE": str(gone)}
    ended = cuda_lab.write(test_hosted=HOSTED).run("run", ".", **environ)
    gone.unlink()
    torchs = cuda_lab.run("run", ".", "--verdict", "torch", "--results", "torchs", **environ)

    message = ended.result("test_leaves_a_broken_context").message
    assert "rank 1 of 2 failed: Failed: the GPU reported an error after the test: CUDA error" in message
    assert torchs.exit_code == 0, torchs.output


VANISHES = """
import os, pathlib, pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
@pytest.mark.parametrize("number", range(3))
def test_sum(world, number):
    if number == 0 and os.environ["CUDA_VISIBLE_DEVICES"].count("0" * 12 + ","):
        pathlib.Path(os.environ["GONE"]).touch()
    x = torch.ones(4, device=world.device)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 4
"""


def test_tests_on_a_gpu_that_vanishes_run_again_on_others(cuda_labs):
    """What the driver itself says needs no second test: the GPU is quarantined, and costs no verdict."""
    lab = cuda_labs(gpus=4)
    gone = lab.folder / "gone"

    ended = lab.write(test_sum=VANISHES).run(
        "run", ".", EMULATED_CUDA_FAULTS=f"vanish device=0 when={gone}", GONE=str(gone)
    )

    assert gone.exists(), ended.output
    assert {Outcome.PASSED} == {test.final.outcome for test in ended.run.tests}, ended.output
    (note,) = [note for note in ended.run.notes if "is in quarantine" in note]
    assert (
        "GPU 0 (GPU-eeeeeeee-0000-0000-0000-000000000000, 00000000:10:00.0): GPU is lost: gpu:0 is in quarantine"
        in note
    )
