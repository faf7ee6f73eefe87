"""What one GPU is enough for, emulated or real (``--real-gpus``): forks, faults, what is left behind, who holds it."""

from __future__ import annotations

import json

import pytest
from gpu_holder import HOLDS, held_by_a_stranger
from lab import Ended

from disttest.model import Cause, Isolation, Outcome

IMPORTS = """
import os
import pytest, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import MultiProcessTestCase, skip_if_lt_x_gpu
"""
ASKS_AT_IMPORT = (
    IMPORTS
    + """
import torch.testing._internal.common_device_type

HAS_GPU, COUNT = torch.cuda.is_available(), torch.cuda.device_count()
HAS_BF16 = torch.cuda.is_bf16_supported()
AT_IMPORT = (torch.cuda.get_device_capability(), torch.cuda.get_device_name(0), torch.cuda.current_device())
PROPERTIES = torch.cuda.get_device_properties("cuda:0")
"""
)
ANSWERS = """
def plain(value):
    return value if isinstance(value, bool | int | str) else str(value)

@pytest.mark.world_size(1)
def test_the_answers_were_those_of_cuda(world):
    assert (HAS_GPU, COUNT, HAS_BF16) == (True, 1, torch.cuda.is_bf16_supported())
    assert AT_IMPORT == (torch.cuda.get_device_capability(), torch.cuda.get_device_name(0), 0)
    truth = torch.cuda.get_device_properties(0)
    names = [name for name in dir(truth) if not name.startswith("_")]
    assert len(names) > 8 and type(truth) is not type(PROPERTIES)
    for name in names:
        assert plain(getattr(truth, name)) == plain(getattr(PROPERTIES, name)), name
"""
PLAIN_RANKS = """
@pytest.mark.world_size(1)
def test_collectives(world):
    assert (world.backend, str(world.device)) == ("nccl", "cuda:0")
    assert os.environ["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    assert "built-in" in repr(torch._C._cuda_init) and "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ
    x = torch.arange(1 << 20, dtype=torch.float32, device=world.device)
    dist.all_reduce(x)
    gathered = torch.empty_like(x)
    dist.all_gather_into_tensor(gathered, x)
    assert torch.equal(gathered.cpu(), torch.arange(1 << 20, dtype=torch.float32))

@pytest.mark.world_size(1)
def test_training(world):
    model = DistributedDataParallel(torch.nn.Linear(64, 64).to(world.device), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.ones(8, 64, device=world.device)).square().mean()
        loss.backward()
        optimizer.step()
    assert loss.isfinite()

@pytest.mark.needs_gpus(1)
def test_ordinary():
    assert torch.ones(1, device="cuda").item() == 1

@pytest.mark.needs_gpus(2)
def test_needs_another_one():
    raise AssertionError("this test was started")

class TestTorchs(MultiProcessTestCase):
    world_size = 1

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @skip_if_lt_x_gpu(1)
    def test_uses_its_gpu(self):
        assert torch.ones(2, device="cuda:0").sum().item() == 2
"""
RANKS = ANSWERS + PLAIN_RANKS


@pytest.mark.parametrize("how", ["run", "pytest"])
def test_ranks_are_forks_that_use_the_gpu(one_gpu, how):
    """Where the module has asked at import what the GPU can do; torch's own test files do."""
    one_gpu.write(test_ranks=ASKS_AT_IMPORT + RANKS)

    ended = one_gpu.run("run", ".") if how == "run" else one_gpu.pytest(".")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output
    logs = "".join(file.read_text() for file in ended.results.glob("logs/**/main.log"))
    assert "spawned by torch" not in logs, logs
    outcomes = {test.test.nodeid: test.final.outcome for test in ended.run.tests}
    needs = ended.result("test_needs_another_one")
    assert (Outcome.SKIPPED, "needs 2 GPUs, this run has 1") == (needs.outcome, needs.message)
    assert sorted(outcomes.values()) == [Outcome.PASSED] * (len(outcomes) - 1) + [Outcome.SKIPPED], outcomes


def test_a_module_that_holds_memory_of_the_gpu_is_named(one_gpu):
    """Its ranks are new interpreters, and the GPU, which the run itself holds, stays in use."""
    holds = 'KEPT = torch.ones(4 << 20, device="cuda:0")\n'
    one_gpu.write(test_holds=ASKS_AT_IMPORT + holds + PLAIN_RANKS)

    ended = one_gpu.run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert "CUDA was initialised by torch.cuda._lazy_init at test_holds.py:" in ended.output
    assert "What this process holds of its GPU is missing to the ranks" in ended.output
    assert "quarantine" not in ended.output


INITIALISES = """
import ctypes
ctypes.CDLL("libcuda.so.1").cuInit(0)
"""
NUMBA = """
import ctypes

def is_available():
    return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
"""
ASKS_NUMBA = f"""
{ASKS_AT_IMPORT}
import numba.cuda
from torch.testing._internal.common_cuda import TEST_NUMBA_CUDA
assert TEST_NUMBA_CUDA is numba.cuda.is_available() is True and numba.__path__[0].startswith(os.getcwd())
"""
ASKS_NVML = """
import pynvml
pynvml.nvmlInit()
"""


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("", ", when test_beside.py was imported"),
        (ASKS_AT_IMPORT, ", before torch.testing._internal.common_device_type at test_beside.py:10"),
    ],
    ids=["alone", "before torch"],
)
def test_a_module_that_initialises_cuda_beside_torch_is_named(one_gpu, then, words):
    """As numba, CuPy and JAX do: no fork could use the GPU."""
    ended = one_gpu.write(test_beside=INITIALISES + (then or IMPORTS) + PLAIN_RANKS).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert f"CUDA was initialised by another library than torch{words}" in ended.output


def test_numba_is_asked_whether_it_can_use_gpus_and_forking_is_safe(one_gpu):
    """Torch's own test modules ask it when they are imported, where it is installed."""
    (one_gpu.folder / "numba").mkdir()
    (one_gpu.folder / "numba" / "__init__.py").touch()
    (one_gpu.folder / "numba" / "cuda.py").write_text(NUMBA)

    ended = one_gpu.write(test_numba=ASKS_NUMBA + RANKS).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output


def test_a_module_that_asks_nvml_leaves_forking_safe(one_gpu):
    """The driver's library has a thread in this process then, and is not initialised."""
    one_gpu.write(test_nvml=ASKS_NVML + ASKS_AT_IMPORT + RANKS)

    ended = one_gpu.run("run", ".", "--", "-W", "error::DeprecationWarning")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output


DIRTY = """
import pytest, torch

KEPT = []

@pytest.mark.world_size(1)
def test_dirty(world):
    KEPT.append(torch.empty(8 << 20, dtype=torch.uint8, device=world.device))
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_autocast_enabled("cuda", True)
    torch.set_default_device("cuda")
    torch.cuda.set_stream(torch.cuda.Stream())

@pytest.mark.world_size(1)
def test_next(world):
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert not torch.is_autocast_enabled("cuda") and not torch.backends.cuda.matmul.allow_tf32
    assert torch.get_default_device().type == "cpu"
    assert len(KEPT) == 1  # the same process

@pytest.mark.world_size(1)
def test_multiplies(world):
    x = torch.ones(256, 256, device=world.device, requires_grad=True)
    (x @ x).sum().backward()  # cuBLAS has a workspace from here on

@pytest.mark.world_size(1)
def test_convolves(world):
    torch.nn.Conv2d(4, 4, 3).to(world.device)(torch.ones(2, 4, 8, 8, device=world.device)).sum().backward()
"""


def test_what_a_test_leaves_on_its_gpu_is_named_and_put_back(one_gpu):
    ended = one_gpu.write(test_dirty=DIRTY).run("run", ".")

    assert ended.exit_code == 0, ended.output
    notes = "\n".join(ended.result("test_dirty").notes)
    for expected in (
        "leaked memory of cuda:0: 8.0 MiB more in use than before",
        "leaked autocast cuda: False became True",
        "leaked cuda stream of cuda:0: ",
    ):
        assert expected in notes
    for clean in ("test_next", "test_multiplies", "test_convolves"):
        assert ended.result(clean).notes == (), clean


FAULTS = """
import os, pathlib, signal
import pytest, torch, torch.distributed as dist

pytestmark = [pytest.mark.world_size(1), pytest.mark.timeout(5)]
EMULATED = "EMULATED_CUDA_FAULTS" in os.environ
WILD = 'extern "C" __global__ void wild(float* x) { *(int*)16 = 1; }'

@pytest.fixture(autouse=True)
def ones(world):
    x = torch.ones(64 << 20, device=world.device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    return x

def inject(kind):
    pathlib.Path(f"{kind}.{os.getpid()}").touch()

def write_wildly(x):
    if EMULATED:
        inject("sticky")
    else:
        torch.cuda._compile_kernel(WILD, "wild")(grid=(1, 1, 1), block=(1, 1, 1), args=[x])

def occupy():
    if EMULATED:
        inject("hang")
    else:
        torch.cuda._sleep(1 << 50)  # clocks: for days

def test_aborts(world, ones):
    os.abort()

def test_healthy_1(ones): pass

def test_is_killed(world, ones):
    os.kill(os.getpid(), signal.SIGKILL)

def test_healthy_2(ones): pass

def test_leaves_a_broken_context(world, ones):
    write_wildly(ones)

def test_healthy_3(ones): pass

def test_fails_in_a_broken_context(world, ones):
    write_wildly(ones)
    torch.cuda.synchronize()

def test_healthy_4(ones): pass

def test_runs_out_of_memory(world, ones):
    torch.empty(1 << 40, device=world.device)

def test_healthy_5(ones): pass

def test_device_is_busy_at_the_end(world, ones):
    occupy()

def test_healthy_6(ones): pass

def test_waits_for_a_busy_device(world, ones):
    occupy()
    torch.cuda.synchronize()

def test_healthy_7(ones): pass
"""
CASES = {
    "test_aborts": (Outcome.ERROR, "rank 0 of 1 was killed by SIGABRT in call, before it reported"),
    "test_is_killed": (Outcome.ERROR, "rank 0 of 1 was killed by SIGKILL in call, before it reported"),
    "test_leaves_a_broken_context": (
        Outcome.ERROR,
        "failed in teardown: Failed: the GPU reported an error after the test: CUDA error: an illegal memory "
        "access was encountered",
    ),
    "test_fails_in_a_broken_context": (
        Outcome.FAILED,
        "CUDA error: an illegal memory access was encountered",
    ),
    "test_runs_out_of_memory": (
        Outcome.FAILED,
        "rank 0 of 1 failed: torch.OutOfMemoryError: CUDA out of memory",
    ),
    "test_device_is_busy_at_the_end": (
        Outcome.FAILED,
        "the test finished, its tear-down hangs: "
        "rank 0 waits for its GPU to finish what the test has started there",
    ),
    "test_waits_for_a_busy_device": (
        Outcome.FAILED,
        "rank 0 waits for its GPU in test_waits_for_a_busy_device at test_faults.py:64, "
        "not waiting for another rank (timed out after 5 s)",
    ),
}


@pytest.fixture(scope="module")
def matrix(cuda_labs, request) -> Ended:
    """One run of all of them."""
    lab = cuda_labs(gpus=1).write(test_faults=FAULTS)
    faults = "; ".join(f"{kind} device=0 when={lab.folder / kind}.%p" for kind in ("sticky", "hang"))
    injected = {} if request.config.getoption("--real-gpus") else {"EMULATED_CUDA_FAULTS": faults}
    # Else NCCL's watchdog ends the process, now and then before the call has raised.
    return lab.run("run", ".", TORCH_NCCL_RETHROW_CUDA_ERRORS="0", **injected)


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named(matrix, name):
    outcome, words = CASES[name]

    result = matrix.result(name)

    assert words in result.message
    assert (outcome, 0, Cause.TEST) == (result.outcome, result.culprit, result.cause)


@pytest.mark.parametrize("number", range(1, 8))
def test_the_next_world_is_healthy(matrix, number):
    assert matrix.result(f"test_healthy_{number}").outcome is Outcome.PASSED


def test_two_broken_contexts_are_no_broken_gpu(matrix):
    assert "the preflight found nothing: these failures are the tests' own" in matrix.output
    assert "quarantine" not in matrix.output


CHILD = f"""
import subprocess, sys
import pytest, torch

pytestmark = [pytest.mark.fresh_world, pytest.mark.world_size(1)]
HOLDS = {HOLDS!r}

def test_leaves_a_child_on_its_gpu(world):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout.readline() == b"holds it\\n"
    sys.held = child  # nothing closes its pipe

def test_next(world):
    assert torch.ones(1, device=world.device).item() == 1
"""


def test_a_child_that_is_left_on_the_gpu_is_killed_before_it_is_handed_on(one_gpu):
    ended = one_gpu.write(test_child=CHILD).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert [Outcome.PASSED] * 2 == [test.final.outcome for test in ended.run.tests]
    assert any("test_leaves_a_child_on_its_gpu" in note for note in ended.run.notes), ended.output
    assert "quarantine" not in ended.output


def test_a_gpu_that_a_stranger_holds_is_taken_only_when_that_is_allowed(one_gpu):
    one_gpu.write(test_ranks=ASKS_AT_IMPORT + RANKS)
    with held_by_a_stranger(one_gpu) as holder:
        refused = one_gpu.run("run", ".", "--gpus", "1", "--deadline", "3", "--results", "refused")
        shared = one_gpu.run("run", ".", "--gpus", "1", "--allow-busy-gpus")

    assert refused.exit_code in (6, 124), refused.output
    assert f"pid {holder.pid}" in refused.output
    assert shared.exit_code == 0, shared.output


def test_the_doctor_proves_one_gpu(one_gpu):
    ended = one_gpu.run("doctor", "--json", "doctor.json")

    assert ended.exit_code == 0, ended.output
    found = json.loads((one_gpu.folder / "doctor.json").read_text())["findings"]
    said = {each["check"]: each.get("message", "") for each in found if each["device"].startswith("GPU")}
    assert said["allocate"].endswith(" MiB") and "e+" not in "".join(said.values())
    assert (
        said["collective_all_reduce"] == ""
    )  # between one rank and itself nothing moves: that is no bandwidth


BOTH = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(min=1)
def test_sum(world):
    x = torch.ones(4, device=world.device)
    dist.all_reduce(x)
    assert x.tolist() == [float(world.size)] * 4
    assert (world.backend, world.device.type) in (("gloo", "cpu"), ("nccl", "cuda"))
"""


def test_worlds_on_the_cpu_beside_a_world_on_the_gpu(one_gpu):
    ended = one_gpu.write(test_both=BOTH).run("run", ".", "--backend", "gloo,nccl", "--world-sizes", "1,2")

    assert ended.exit_code == 0, ended.output
    for name in ("1xnccl", "1xgloo", "2xgloo"):
        assert ended.result(f"test_sum[{name}]").outcome is Outcome.PASSED


TWO = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
def test_two(world):
    x = torch.ones(4, device=world.device)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 4

@pytest.mark.world_size(2)
@pytest.mark.device("cpu")
def test_on_the_cpu(world):
    assert (world.backend, world.device.type) == ("gloo", "cpu")
"""


def test_a_test_for_two_gpus_says_how_it_runs_without(one_gpu):
    skipped = one_gpu.write(test_wide=TWO).run("run", ".", "--", "-k", "test_two")
    elsewhere = one_gpu.run("run", ".", "--results", "elsewhere")
    on_cpu = one_gpu.run("run", ".", "--device", "cpu", "--results", "on-cpu")

    assert skipped.exit_code == 0 and "--device cpu runs tests that lack GPUs on the CPU" in skipped.output
    assert skipped.result("test_two").message == "needs 2 GPUs for 2xnccl, this machine has 1"
    assert elsewhere.exit_code == 0 and "no test ran in a world" not in elsewhere.output
    assert "passed: 1 passed, 1 skipped" in elsewhere.output
    assert on_cpu.exit_code == 0 and "passed: 2 passed" in on_cpu.output


ONE = """
import pytest, torch.distributed as dist

@pytest.mark.world_size(1)
@pytest.mark.parametrize("number", range(2))
def test_one(world, number):
    pass
"""


def test_what_cannot_be_recorded_costs_nothing_and_is_said(one_gpu):
    ended = one_gpu.write(test_one=ONE).run("run", ".", "--record", "all")

    assert ended.exit_code == 0, ended.output
    told = "--record has no effect on 2 of 2 tests, with ranks on GPUs (--device cpu records them over gloo)"
    assert f"disttest: {told}\n" in ended.output
    assert {test.test.isolation for test in ended.run.tests} == {Isolation.WARM}
