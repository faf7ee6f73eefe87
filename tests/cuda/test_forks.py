"""Ranks are forks on a machine with GPUs, too: nothing of ours initialises CUDA, and who does is named."""

from __future__ import annotations

import pytest
from lab import FAULTY_SUITES

from disttest.model import Outcome

RANKS = """
import os, pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
def test_sum(world):
    x = torch.ones(4, device=world.device)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 4
    assert world.device.index == world.rank == torch.cuda.current_device()
    visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    assert len(set(visible)) == 2 and all(name.startswith("GPU-") for name in visible)

@pytest.mark.world_size(2)
def test_a_rank_has_torch_as_it_is(world):
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ
    assert "built-in" in repr(torch._C._cuda_init)
"""
ORDINARY = """
def test_ordinary_tests_have_torch_as_it_is():
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ
    assert torch.cuda.is_available() and "built-in" in repr(torch._C._cuda_init)
"""
AT_IMPORT = """
import torch
HAS_GPU = torch.cuda.is_available()
COUNT = torch.cuda.device_count()
import torch.testing._internal.common_distributed
"""
TOUCHES = """
import torch
torch.cuda.init()
"""
ASKS_OF_DEVICES = """
import torch, torch.testing._internal.common_device_type
HAS_BF16 = torch.cuda.is_bf16_supported()
AT_IMPORT = (torch.cuda.get_device_capability(), torch.cuda.get_device_name(1), torch.cuda.current_device())
PROPERTIES = torch.cuda.get_device_properties("cuda:1")
MEMORY = PROPERTIES.total_memory
"""
ANSWERS = """
@pytest.mark.world_size(2)
def test_the_answers_were_those_of_cuda(world):
    assert HAS_BF16 is torch.cuda.is_bf16_supported()
    assert AT_IMPORT == (torch.cuda.get_device_capability(), torch.cuda.get_device_name(1), 0)
    truth = torch.cuda.get_device_properties(1)
    assert "built-in" in repr(type(truth).__init__) or type(truth).__module__ != "disttest.host.cuda_answers"
    assert MEMORY == truth.total_memory and str(PROPERTIES.uuid) == str(truth.uuid)
"""
TORCHS = """
import os, torch
from torch.testing._internal.common_distributed import MultiProcessTestCase, skip_if_lt_x_gpu

class TestTorchs(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @skip_if_lt_x_gpu(2)
    def test_uses_its_gpu(self):
        assert torch.ones(2, device=f"cuda:{self.rank}").sum().item() == 2

    @skip_if_lt_x_gpu(2)
    def test_fails_with_a_reason(self):
        torch.ones(2, device=f"cuda:{self.rank}")
        if self.rank == 1:
            raise RuntimeError("no such layer")
"""


def test_forked_ranks_use_their_own_gpus(cuda_lab):
    ended = cuda_lab.write(test_ranks=RANKS + ORDINARY).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output


def test_so_they_do_under_plain_pytest(cuda_lab):
    ended = cuda_lab.write(test_ranks=RANKS + ORDINARY).pytest(".")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output


def test_modules_that_look_for_gpus_at_import_leave_forking_safe(cuda_lab):
    """``HAS_GPU = torch.cuda.is_available()``, and what all of torch's own test files import."""
    ended = cuda_lab.write(test_ranks=AT_IMPORT + RANKS).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output


def test_a_module_that_initialises_cuda_is_named_and_its_tests_pass_all_the_same(cuda_lab):
    ended = cuda_lab.write(test_touches=TOUCHES + RANKS, test_other=RANKS).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert (
        "forking is unsafe here: CUDA was initialised by torch.cuda.init at test_touches.py:3" in ended.output
    )
    assert {Outcome.PASSED} == {test.final.outcome for test in ended.run.tests}


def test_modules_that_ask_what_the_gpus_can_do_leave_forking_safe(cuda_lab):
    """``get_device_capability() >= (8, 0)`` at import: a fork of the controller asks, and the answers are right."""
    ended = cuda_lab.write(test_ranks=ASKS_OF_DEVICES + RANKS + ANSWERS).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output


def test_ranks_of_torchs_own_classes_are_forks(cuda_lab):
    """What ``setUp`` of torch's classes asks CUDA does not spoil their main process."""
    ended = cuda_lab.write(test_torchs=TORCHS).run("run", ".")

    passed, failed = ended.result("test_uses_its_gpu"), ended.result("test_fails_with_a_reason")
    logs = "".join(file.read_text() for file in ended.results.glob("logs/**/main.log"))
    assert "spawned by torch" not in logs, logs
    assert Outcome.PASSED is passed.outcome, ended.output
    assert "rank 1 of 2 failed: RuntimeError: no such layer" == failed.message


WITHOUT_DRIVER = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
def test_sum(world):
    dist.barrier()
    with pytest.raises(RuntimeError, match="Found no NVIDIA driver"):
        torch.ones(1, device="cuda")
"""
ASKS = "import torch\nHAS_GPU = torch.cuda.is_available()\n"


@pytest.mark.parametrize("start", ["", ASKS], ids=["nobody asks", "a module asks"])
def test_without_a_driver_ranks_are_forks_too(cuda, tmp_path, start):
    """Torch's CUDA build on a machine for the CPU: no rank can use CUDA in any case, so asking it spoils nothing."""
    lab = cuda.lab(tmp_path, gpus=0).write(test_cpu=start + WITHOUT_DRIVER)

    ended = lab.run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output


HOSTED_WITHOUT_DRIVER = """
import torch
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestTorchs(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        assert torch.cuda.device_count() == 0 and not torch.cuda.is_available()
        self._spawn_processes()

    def test_needs_a_gpu(self):
        torch.cuda.init()
"""


def test_a_rank_of_torchs_classes_is_told_that_there_is_no_driver(cuda, tmp_path):
    """As it is without disttest, and not that forks cannot use CUDA, though its main process has counted GPUs."""
    ended = cuda.lab(tmp_path, gpus=0).write(test_torchs=HOSTED_WITHOUT_DRIVER).run("run", ".")

    assert "Found no NVIDIA driver" in ended.result("test_needs_a_gpu").message


def test_classes_that_choose_a_device_choose_the_cpu_where_there_is_no_gpu(cuda, tmp_path):
    """Torch's CUDA build, which pip installs by default, names CUDA its accelerator on every machine."""
    source = (FAULTY_SUITES / "own_classes.py").read_text()
    lab = cuda.lab(tmp_path, gpus=0).write(test_own_classes=source)

    ended = lab.run("run", "test_own_classes.py", "-k", "DynamoSingle or DynamoMulti or Continuous")

    assert {"DynamoSingle", "DynamoMulti", "Continuous"} == {
        test.test.nodeid.split("::")[1] for test in ended.run.tests if test.final.outcome is Outcome.PASSED
    }, ended.output


SEEDED = """
import pytest, torch
from torch.cuda import _lazy_seed_tracker

@pytest.mark.world_size(2)
def test_no_seed_waits_for_a_gpu(world):
    assert not torch.cuda.is_initialized() and not _lazy_seed_tracker.get_calls()
    assert torch.initial_seed() != 0
"""


def test_no_seed_is_noted_for_gpus_that_never_come(cuda, tmp_path):
    """Torch keeps a stack with each, which takes longer than all else before a small test."""
    ended = cuda.lab(tmp_path, gpus=0).write(test_seeded=SEEDED).run("run", ".")

    assert ended.exit_code == 0, ended.output
