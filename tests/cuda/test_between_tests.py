"""What a test leaves on its GPU: found at its own end, named, and put back before the next."""

from __future__ import annotations

from lab import IMPORTS_AT_FORK

DIRTY = """
import pytest, torch

KEPT = []

@pytest.mark.world_size(2)
def test_dirty(world):
    KEPT.append(torch.empty(8 << 20, dtype=torch.uint8, device=world.device))
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = False
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float32)
    torch.use_deterministic_algorithms(True)
    torch.set_default_device("cuda")
    torch.cuda.set_stream(torch.cuda.Stream())
    torch.cuda.set_device(1 - world.rank)

@pytest.mark.world_size(2)
def test_next(world):
    assert torch.cuda.current_device() == world.rank
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert not torch.is_autocast_enabled("cuda")
    assert torch.get_autocast_dtype("cuda") == torch.float16
    assert not torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_default_device().type == "cpu"
    assert len(KEPT) == 1  # the same process

@pytest.fixture(scope="module")
def model(request):
    return torch.empty(8 << 20, dtype=torch.uint8, device="cuda")

@pytest.mark.world_size(2)
def test_a_fixture_of_the_module_may_keep_its_memory(world, model):
    garbage = [torch.empty(8 << 20, dtype=torch.uint8, device=world.device)]
    garbage.append(garbage)  # a cycle: in use until it is collected

@pytest.mark.world_size(2)
def test_and_uses_it_on(world, model):
    pass
"""


def test_what_a_test_changes_on_its_gpu_is_put_back_and_named(cuda_lab):
    ended = cuda_lab.write(test_dirty=DIRTY).run("run", ".")

    assert ended.exit_code == 0, ended.output
    notes = "\n".join(ended.result("test_dirty").notes)
    for expected in (
        "rank 0 leaked memory of cuda:0: 8.0 MiB more in use than before",
        "rank 1 leaked memory of cuda:1: 8.0 MiB more in use than before",
        "ranks 0, 1 leaked autocast cuda: False became True",
        "ranks 0, 1 leaked torch.backends TF32 in cuDNN: True became False",
        "rank 0 leaked cuda current device: 0 became 1",
        "leaked cuda stream of cuda:0: ",
    ):
        assert expected in notes
    for clean in ("test_next", "test_a_fixture_of_the_module_may_keep_its_memory", "test_and_uses_it_on"):
        assert ended.result(clean).notes == (), clean


TRAINING = """
import os, sys
import pytest, torch
from conftest import HAD_AT_FORK
from torch.nn.parallel import DistributedDataParallel

@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.world_size(2)
def test_step(world, number):
    print("pid", os.getpid())
    model = DistributedDataParallel(torch.nn.Linear(2, 2).to(world.device), device_ids=[world.rank])
    model(torch.ones(2, 2, device=world.device)).sum().backward()
    torch.optim.SGD(model.parameters()).step()
    torch.testing.assert_close(torch.ones(1), torch.ones(1))
    own = [name for name in set(sys.modules) - HAD_AT_FORK if not name.startswith("disttest.")]
    assert HAD_AT_FORK and set(own) <= {"torch.profiler._cupti_monitor"}
"""


def test_a_rank_on_a_gpu_imports_nothing_for_itself(cuda_lab):
    ended = cuda_lab.write(conftest=IMPORTS_AT_FORK, test_training=TRAINING).run(
        "run", ".", "--sanitize", "off"
    )

    assert ended.exit_code == 0, ended.output
    first, second = (ended.log(f"test_step[2xnccl-{number}]", 0).split("pid ")[1] for number in (1, 2))
    assert first.split()[0] == second.split()[0]  # the second saw how the first was cleaned up after
