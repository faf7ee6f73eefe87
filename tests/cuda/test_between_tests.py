"""What a test leaves on its GPU: found at its own end, named, and put back before the next."""

from __future__ import annotations

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
        "rank 0,1 leaked autocast cuda: False became True",
        "rank 0,1 leaked torch.backends TF32 in cuDNN: True became False",
        "rank 0 leaked cuda current device: 0 became 1",
        "leaked cuda stream of cuda:0: ",
    ):
        assert expected in notes
    for clean in ("test_next", "test_a_fixture_of_the_module_may_keep_its_memory", "test_and_uses_it_on"):
        assert ended.result(clean).notes == (), clean


UNCOMPILED = """
import os, sys
import pytest
from torch.nn.parallel import DistributedDataParallel  # it brings torch._dynamo

@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.world_size(2)
def test_nothing_is_compiled(world, number):
    print("pid", os.getpid())
    assert "torch._dynamo" in sys.modules
    assert "torch._inductor.cudagraph_trees" not in sys.modules
"""


def test_ranks_import_no_compiler_to_forget_what_nobody_has_compiled(cuda_lab):
    ended = cuda_lab.write(test_uncompiled=UNCOMPILED).run("run", ".")

    assert ended.exit_code == 0, ended.output
    first, second = (ended.log(f"test_nothing_is_compiled[2xnccl-{number}]", 0) for number in (1, 2))
    assert (
        first and first.splitlines()[0] == second.splitlines()[0]
    )  # the second saw how the first was cleaned up after
