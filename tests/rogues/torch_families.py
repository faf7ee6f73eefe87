"""Test classes on the bases that torch's own suites stack on its harness: FSDP's, DTensor's, one class for each device."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_fsdp import FSDPTest, FSDPTestMultiThread
from torch.testing._internal.common_utils import parametrize
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms


class TestFsdp(FSDPTest):
    @property
    def world_size(self):
        return 2

    def test_shards(self):
        from torch.distributed.fsdp import fully_shard

        model = torch.nn.Linear(8, 8)
        mesh = init_device_mesh("cpu", (self.world_size,))
        fully_shard(model, mesh=mesh)
        out = model(torch.randn(2, 8)).sum()
        out.backward()
        self.assertEqual(dist.get_world_size(), 2)

    def test_wrong(self):
        self.assertEqual(self.rank, 0)


class TestFsdpThreads(FSDPTestMultiThread):
    @property
    def world_size(self):
        return 2

    def test_shards(self):
        x = torch.ones(3)
        dist.all_reduce(x)
        self.assertEqual(x, torch.full((3,), 2.0))

    def test_wrong(self):
        self.assertEqual(self.rank, 0)


class TestDTensor(DTensorTestBase):
    @property
    def world_size(self):
        return 2

    @property
    def device_type(self):
        return "cpu"

    @with_comms
    def test_redistribute(self):
        mesh = self.build_device_mesh()
        x = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        self.assertEqual(x.redistribute(mesh, [Replicate()]).to_local(), torch.arange(8.0))

    @with_comms
    def test_wrong(self):
        self.assertNotEqual(self.rank, 1)


class TestEachDevice(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @parametrize("size", [1, 3])
    def test_sum(self, device, size):
        store = dist.FileStore(self.file_name, 2)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)
        x = torch.ones(size, device=device)
        dist.all_reduce(x)
        self.assertEqual(x, torch.full((size,), 2.0))

    def test_wrong(self, device):
        self.assertEqual(self.rank, 0)


instantiate_device_type_tests(TestEachDevice, globals(), only_for="cpu")
