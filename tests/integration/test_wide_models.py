"""Meshes, sharded models and pipelines of 64 ranks, which connect lazily; 19 s of CPU time with two processors."""

from __future__ import annotations

import pytest
from lab import Ended, Lab

from disttest.model import Outcome

MODELS = """
    import copy

    import pytest
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    RANKS = 64
    pytestmark = pytest.mark.world_size(RANKS)


    def test_mesh(world):
        mesh = init_device_mesh("cpu", (4, 4, 4), mesh_dim_names=("pp", "dp", "tp"))
        assert tuple(mesh.get_coordinate()) == (world.rank // 16, world.rank // 4 % 4, world.rank % 4)
        for name in mesh.mesh_dim_names:
            ranks = torch.tensor([float(world.rank)])
            dist.all_reduce(ranks, group=mesh[name].get_group())
            assert ranks.item() == sum(dist.get_process_group_ranks(mesh[name].get_group()))


    def test_fully_shard(world):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 4))
        plain = copy.deepcopy(model)
        fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
        inputs = torch.randn(RANKS, 8)
        model(inputs[world.rank :][:1]).sum().backward()
        (plain(inputs).sum() / RANKS).backward()
        for sharded, whole in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(sharded.grad.full_tensor(), whole.grad)


    def test_pipeline(world):
        mesh = init_device_mesh("cpu", (8, 8), mesh_dim_names=("pp", "dp"))
        torch.manual_seed(0)
        layers = [nn.Linear(4, 4) for _ in range(8)]
        stage, replica = mesh.get_coordinate()
        own = PipelineStage(layers[stage], stage, 8, torch.device("cpu"), group=mesh["pp"].get_group())
        schedule = ScheduleGPipe(own, n_microbatches=4)
        torch.manual_seed(replica)
        inputs = torch.randn(8, 4)
        output = schedule.step(*([inputs] if stage == 0 else []))
        if stage == 7:
            torch.testing.assert_close(output, nn.Sequential(*layers)(inputs))
"""
MESH = """
    import pytest
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    @pytest.mark.parametrize("rank", [0, 777, 1023])
    def test_mesh_of_1024(rank):
        dist.init_process_group("fake", rank=rank, world_size=1024, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (8, 8, 16), mesh_dim_names=("pp", "dp", "tp"))
            assert list(mesh.get_coordinate()) == [rank // 128, rank // 16 % 8, rank % 16]
            first = rank - rank % 16
            assert dist.get_process_group_ranks(mesh["tp"].get_group()) == list(range(first, first + 16))
        finally:
            dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    lab = Lab(tmp_path_factory.mktemp("models")).write(test_models=MODELS)
    return lab.run("test_models.py", "--timeout", "200", TORCH_GLOO_LAZY_INIT="1")


@pytest.mark.parametrize("name", ["mesh", "fully_shard", "pipeline"])
def test_models_of_64_ranks(ended: Ended, name: str) -> None:
    result = ended.result(f"test_{name}")

    assert result.outcome is Outcome.PASSED, result.message
    assert 64 == len(result.ranks)


def test_a_mesh_of_1024_ranks_in_one_process(lab: Lab) -> None:
    """The page recommends torch's fake group for meshes that are larger than the machine."""
    ended = lab.write(test_mesh=MESH).run("test_mesh.py")

    assert 0 == ended.exit_code, ended.output
    assert [Outcome.PASSED] * 3 == [each.final.outcome for each in ended.run.tests]
